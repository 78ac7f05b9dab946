"""CRI's messages. Their classes are made when the first is used, as protobuf takes a twentieth of the daemon's start.

The link to the runtime uses them as soon as that is found, so no call that hooks open has to wait for them.
"""

from typing import TYPE_CHECKING

from criproxy.fronts.protobuf import attributes, classes

if TYPE_CHECKING:
    from google.protobuf.unknown_fields import UnknownFieldSet as UnknownFieldSet  # noqa: PLC0414

    from criproxy.fronts.cri.cri_pb2 import *  # noqa: F403


def load() -> None:
    """Make the classes, unless they are there."""
    if "VersionRequest" in globals():
        return
    from criproxy.fronts.cri.cri_descriptor import FILE

    globals().update(classes(FILE, "cri.proto", __name__))


if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), load, "cri-api/cri.proto")
