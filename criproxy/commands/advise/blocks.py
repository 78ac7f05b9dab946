"""A page as a list of blocks, and its two forms: one HTML file that asks nobody for anything, and Markdown.

What is drawn is there as a table as well, so that Markdown, and who can't see a curve, misses nothing.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, Literal

from msgspec import Struct

from criproxy import __version__


class Heading(Struct, frozen=True):
    text: str
    level: int = 2


class Paragraph(Struct, frozen=True):
    """A paragraph. `kind` verdict: the sentence that the page begins with; quiet: an aside."""

    text: str
    kind: Literal["", "yes", "no", "quiet"] = ""


class Items(Struct, frozen=True):
    items: tuple[str, ...]
    ordered: bool = False


class FactTable(Struct, frozen=True):
    """A table; the first column is text."""

    caption: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False
    """Behind a line to open it, where there is a drawing of it."""


class Drawing(Struct, frozen=True):
    """An SVG that was made here, and what it shows in words."""

    svg: str
    shows: str


class Listing(Struct, frozen=True):
    """Lines as they are: a config, commands."""

    text: str


PageBlock = Heading | Paragraph | Items | FactTable | Drawing | Listing

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --ground: #ffffff; --line: #c9d1d9; --card: #f6f8fa;
  --mean: #2f6fb5; --sure: #14508f; --bad: #a3150f; --well: #146c43; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9da7b3; --ground: #0f1318; --line: #3d444d;
  --card: #171c23; --mean: #5aa2ee; --sure: #a9d0ff; --bad: #ffb1aa; --well: #56c78c; } }
* { box-sizing: border-box; }
html { font-size: clamp(15px, 0.65vw + 9px, 26px); }
body { margin: 0 auto; max-width: 62rem; padding: 0 1rem 3rem; background: var(--ground); color: var(--ink);
  font-family: system-ui, sans-serif; line-height: 1.5; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 1.2rem 0 0.5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.3rem; }
p.yes, p.no { font-size: 1.15rem; padding: 0.7rem 0.9rem; background: var(--card);
  border-left: 0.35rem solid var(--well); }
p.no { border-color: var(--bad); }
.quiet, footer, caption { color: var(--quiet); font-size: 0.9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0.2rem 0; overflow-wrap: normal; }
th, td { text-align: right; padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; } tbody td, tbody th { white-space: nowrap; }
pre { background: var(--card); border: 1px solid var(--line); padding: 0.7rem; overflow-x: auto;
  overflow-wrap: normal; }
figure { margin: 0.5rem 0; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 13px; font-family: inherit; }
@media (max-width: 600px) { svg text { font-size: 20px; } }
.axis { stroke: var(--line); } .mean { fill: var(--mean); } .sure { fill: var(--sure); }
.curve { fill: none; stroke: var(--mean); stroke-width: 2; } .point { fill: var(--mean); }
.chosen { fill: none; stroke: var(--well); stroke-width: 3; } .budget { stroke: var(--bad); stroke-dasharray: 5 4; }
summary { cursor: pointer; } :focus-visible { outline: 2px solid var(--mean); outline-offset: 2px; }
@media print { details > * { display: block; } }
"""


def html(title: str, blocks: Sequence[PageBlock]) -> str:
    """It has no script, and its policy lets none in, nor any other host."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>'
    )
    body = "\n".join(line for block in blocks for line in _html_of(block))
    foot = f"</main><footer>criproxy {escape(__version__)}</footer></body></html>"
    return f"{head}\n<h1>{escape(title)}</h1>\n{body}\n{foot}\n"


def _html_of(block: PageBlock) -> Iterator[str]:
    match block:
        case Heading(text, level):
            yield f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text, kind):
            yield f'<p class="{kind}">{_inline(text)}</p>' if kind else f"<p>{_inline(text)}</p>"
        case Items(items, ordered):
            tag = "ol" if ordered else "ul"
            listed = "".join(f"<li>{_inline(item)}</li>" for item in items)
            yield f"<{tag}>{listed}</{tag}>"
        case FactTable():
            if block.folded:
                yield "<details><summary>As a table</summary>"
            yield from _table_of(block)
            if block.folded:
                yield "</details>"
        case Drawing(svg, shows):
            label = f'<svg role="img" aria-label="{escape(shows)}" '
            yield f"<figure>{svg.replace('<svg ', label, 1)}</figure>"
        case Listing(text):
            yield f'<pre tabindex="0">{escape(text)}</pre>'


def _table_of(block: FactTable) -> Iterator[str]:
    yield f'<div class="wide" tabindex="0"><table><caption>{escape(block.caption)}</caption><thead><tr>'
    yield "".join(f'<th scope="col">{escape(title)}</th>' for title in block.titles) + "</tr></thead><tbody>"
    for first, *others in block.rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        yield f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _inline(text: str) -> str:
    """`code` between backquotes."""
    return re.sub(r"`([^`]{1,300})`", r"<code>\1</code>", escape(text))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(title: str, blocks: Sequence[PageBlock]) -> str:
    parts = [f"# {_plain(title)}"]
    parts += [text for block in blocks if (text := _markdown_of(block))]
    return "\n\n".join([*parts, f"criproxy {__version__}"]) + "\n"


def _markdown_of(block: PageBlock) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text, kind):
            return f"**{_plain(text)}**" if kind in ("yes", "no") else _plain(text)
        case Items(items, ordered):
            marks = [f"{i}." if ordered else "-" for i in range(1, len(items) + 1)]
            return "\n".join(f"{mark} {_plain(item)}" for mark, item in zip(marks, items, strict=True))
        case FactTable(caption, titles, rows):
            lines = [titles, ("---",) + ("---:",) * (len(titles) - 1), *rows]
            table = "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)
            return f"{_plain(caption)}\n\n{table}"
        case Listing(text):
            return f"```\n{text}\n```"
        case Drawing():
            return ""


def _plain(text: str) -> str:
    """What Markdown would take for its own, as text; `code` stays."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = ["".join(parts)]
    shown = [part if i % 2 else re.sub(r"([\\*_<>\[\]|#])", r"\\\1", part) for i, part in enumerate(parts)]
    return " ".join("`".join(shown).split())
