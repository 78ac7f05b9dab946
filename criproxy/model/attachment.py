"""Whether this node's kubelet is attached, as a plain value."""

from typing import Literal

from msgspec import Struct


class AttachStatus(Struct, frozen=True):
    """Whether kubelet's endpoint is criproxy; `where` says by what it is, or why it is not, or not known.

    `problem`: why it should be and is not, with the remedy; "": all is as `criproxy attach` and `detach` left it.
    """

    state: Literal["yes", "no", "unknown"]
    where: str
    problem: str = ""
