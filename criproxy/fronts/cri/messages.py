"""CRI's messages, which are imported when the first is used: protobuf takes a twelfth of the time to the first call.

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
        from google.protobuf.unknown_fields import UnknownFieldSet

        from criproxy.fronts.cri import cri_pb2

        found = {kind: value for kind, value in vars(cri_pb2).items() if not kind.startswith("_")}
        globals().update(found, UnknownFieldSet=UnknownFieldSet)
        return getattr(cri_pb2, name) if name != "UnknownFieldSet" else UnknownFieldSet
