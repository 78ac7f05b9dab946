"""CRI's messages. Their classes are made when the first is used, as protobuf takes a twentieth of the daemon's start.

The link to the runtime uses them as soon as that is found, so no call that hooks open has to wait for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.unknown_fields import UnknownFieldSet as UnknownFieldSet  # noqa: PLC0414

    from criproxy.fronts.cri.cri_pb2 import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):  # the import system asks for some
            raise AttributeError(name)
        load()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"cri-api/cri.proto has no {name}") from None


def load() -> None:
    """Make the classes, unless they are there."""
    if "VersionRequest" in globals():
        return
    from criproxy.fronts.cri.cri_descriptor import FILE
    from criproxy.fronts.protobuf import classes

    globals().update(classes(FILE, "cri.proto", __name__))
