"""NRI's messages, and ttrpc's. Their classes are made when the first is used; see `fronts.cri.messages`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from criproxy.fronts.nri.nri_pb2 import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):  # the import system asks for some
            raise AttributeError(name)
        load()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"cri-api/nri.proto has no {name}") from None


def load() -> None:
    """Make the classes, unless they are there."""
    if "TtrpcRequest" in globals():
        return
    from criproxy.fronts.nri.nri_descriptor import FILE
    from criproxy.fronts.protobuf import classes

    globals().update(classes(FILE, "nri.proto", __name__))
