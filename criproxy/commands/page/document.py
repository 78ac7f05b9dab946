"""The page as one document of HTML, with its script and style inside, and what a browser may do with it."""

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any, Final

from criproxy import __version__

_HERE: Final = resources.files(__package__)


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def policy(style: str, script: str, *, asks: bool) -> str:
    """The Content-Security-Policy: this script and this style and nothing else, and no host but our own (`asks`)."""
    own = "'self'" if asks else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        f"connect-src {own}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(host: str, facts: dict[str, Any] | None = None) -> tuple[str, str]:
    """The page, and its policy. `host`: the node's name. `facts`: what it shows; None: it asks for that itself."""
    style, script = _file("page.css"), _file("page.js")
    held = policy(style, script, asks=facts is None)
    parts = {
        "{host}": html.escape(host),
        "{policy}": f'<meta http-equiv="Content-Security-Policy" content="{html.escape(held)}">',
        "{style}": style,
        "{version}": html.escape(f"criproxy {__version__}."),
        "{data}": "" if facts is None else f'<script type="application/json" id="data">{_inside(facts)}</script>',
        "{script}": script,
    }
    before, *rest = _file("page.html").split("{")
    page = [before]
    for part in rest:
        name, _, text = part.partition("}")
        page += [parts[f"{{{name}}}"], text]
    return "".join(page), held


def _inside(facts: dict[str, Any]) -> str:
    """JSON that can't end its script, whatever a pod is called."""
    return json.dumps(facts).replace("<", "\\u003c")
