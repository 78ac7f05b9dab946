"""NRI's messages, and ttrpc's. Their classes are made when the first is used; see `fronts.cri.messages`."""

from typing import TYPE_CHECKING

from criproxy.fronts.protobuf import attributes, classes

if TYPE_CHECKING:
    from criproxy.fronts.nri.nri_pb2 import *  # noqa: F403


def load() -> None:
    """Make the classes, unless they are there."""
    if "TtrpcRequest" in globals():
        return
    from criproxy.fronts.nri.nri_descriptor import FILE

    globals().update(classes(FILE, "nri.proto", __name__))


if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), load, "cri-api/nri.proto")
