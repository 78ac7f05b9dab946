"""`criproxy attach` and `criproxy detach`: their exit status, their words, and what signals do to them."""

import signal
import sys
from pathlib import Path
from types import FrameType

from criproxy.commands import sentry
from criproxy.commands.attach.attaching import attach
from criproxy.commands.attach.criproxy_side import RunningCriproxy
from criproxy.commands.attach.detaching import detach
from criproxy.commands.attach.edits import NodeError
from criproxy.commands.attach.host import Host, Machine
from criproxy.commands.attach.steps import SIGNALS, Steps, hold, say
from criproxy.config.last_run import load_as_it_runs


class SignalledError(BaseException):
    """A signal came."""


def run(verb: str, config_file: Path, dry_run: bool, machine: Machine | None = None, root: Path = Path("/")) -> int:
    """Attach or detach, as `verb` says. The exit status: 0 done, or it was so already; 1 not, and stderr says why."""
    loaded = load_as_it_runs(config_file)
    if verb == "attach" and loaded.errors:
        return _fail(*(str(error) for error in loaded.errors))
    proxy = loaded.config.proxy
    if verb == "attach" and proxy.front == "nri":
        why = "the runtime calls criproxy already, and a node has one front"
        return _fail(
            f'{config_file}: proxy.front = "nri": {why}: remove the key (the default is "cri") to attach kubelet'
        )
    criproxy = RunningCriproxy(str(config_file), proxy.listen_path, proxy.runtime_path, proxy.status_path)
    steps = Steps(Host(machine or Machine(), root), criproxy, dry_run)
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        (attach if verb == "attach" else detach)(steps)
        if verb == "detach" and proxy.front != "nri" and not dry_run and (done := sentry.switch_off(steps.host)):
            say(f"the runtime's sentry is {done}")
    except NodeError as error:
        return _fail(f"criproxy {verb}: {error}")
    except SignalledError as error:
        return _fail(f"criproxy {verb}: {error}; nothing was changed")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _interrupt(number: int, _frame: FrameType | None) -> None:
    hold()  # one is enough: what follows is the clean-up
    raise SignalledError(f"ended by {signal.Signals(number).name}")


def _fail(*lines: str) -> int:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1
