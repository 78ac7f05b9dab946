"""The terminal of `criproxy top`: asks the running criproxy, draws, and listens for keys."""

import contextlib
import curses
import os
import sys
import threading
from pathlib import Path
from typing import Final

from criproxy.commands.top.screen import Line, View, drawn, pressed, whole
from criproxy.observe import client
from criproxy.observe.status import Status, from_json

EVERY_S: Final = 2.0
"""What pods use is measured each 5 s, what the box uses each second."""

_ASK_S: Final = 12.0
_KEY_S: Final = 0.2
_KEYS: Final = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
}


class Asker(threading.Thread):
    """Asks again and again, so that no key waits for an answer. `last` is the last status, None: there was none yet;
    `failure` why there is none of now, "": there is.
    """

    def __init__(self, socket: Path, first: Status) -> None:
        super().__init__(daemon=True)
        self._socket = socket
        self.last, self.failure = first, ""
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(EVERY_S):
            try:
                self.last, self.failure = ask(self._socket), ""
            except (client.AskError, ValueError) as error:
                self.failure = str(error)


def ask(socket: Path) -> Status:
    """Raises AskError, and ValueError for what is no status."""
    return from_json(client.ask(socket, "/status", _ASK_S))


def run(socket: Path) -> None:
    """Until q. Where the output is no terminal, all pods are printed once. Raises as `ask` does, and ValueError for a
    terminal that can't be drawn on.
    """
    first = ask(socket)
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        sys.stdout.write("".join(f"{line}\n" for line in whole(first)))
        return
    asker = Asker(socket, first)
    asker.start()
    try:
        curses.wrapper(_live, asker)
    except curses.error as error:
        raise ValueError(f"this terminal can't be drawn on ({error}): set TERM, or pipe the output to cat") from error
    finally:
        asker.ended.set()


def _live(terminal: "curses.window", asker: Asker) -> None:
    with contextlib.suppress(curses.error):  # some terminals can't hide it
        curses.curs_set(0)
    terminal.timeout(round(_KEY_S * 1000))
    view, status, failure = View(), asker.last, ""
    shown: tuple[object, ...] = ()
    while True:
        if not view.paused:
            status, failure = asker.last, asker.failure
        columns, rows = os.get_terminal_size()
        if terminal.getmaxyx() != (rows, columns):  # curses itself has missed one of two changes that follow at once
            curses.resizeterm(rows, columns)
            terminal.clearok(True)
        height, width = terminal.getmaxyx()
        now = (view, id(status), failure, height, width)
        if now != shown:
            _draw(terminal, drawn(status, view, width, height, failure), width)
            shown = now
        code = terminal.getch()
        if code == ord("q"):
            return
        if code == curses.KEY_RESIZE:
            terminal.clearok(True)  # the terminal has moved its lines: all are drawn anew
            shown = ()
        elif code >= 0:
            key = _KEYS.get(code, chr(code) if code < 128 else "")
            view = pressed(view, key, len(status.pods), height)


def _draw(terminal: "curses.window", lines: list[Line], width: int) -> None:
    styles = {"": curses.A_NORMAL, "head": curses.A_REVERSE, "bad": curses.A_BOLD}
    terminal.erase()
    for at, line in enumerate(lines):
        text = line.text.ljust(width) if line.style == "head" else line.text
        with contextlib.suppress(curses.error):  # the last cell of the last line is drawn, and curses can't go on
            terminal.addnstr(at, 0, text, width, styles[line.style])
    terminal.refresh()
