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
    """Make the classes, unless they are there.

    protobuf's implementation in C does all of it, once it is given the descriptor. The usual way there, the module that
    protoc makes, imports the implementation in Python as well, which is then never used: 1 MiB and 10 ms more.
    """
    if "VersionRequest" in globals():
        return
    from google.protobuf.message import Message

    from criproxy.fronts.cri.cri_descriptor import FILE

    try:
        from google._upb._message import DescriptorPool, MessageMeta, UnknownFieldSet
    except ImportError:  # a protobuf without its part in C
        from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[assignment]
        from google.protobuf.reflection import GeneratedProtocolMessageType as MessageMeta  # type: ignore[assignment]
        from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.AddSerializedFile(FILE)
    kinds = pool.FindFileByName("cri.proto").message_types_by_name
    made = {name: MessageMeta(name, (Message,), {"DESCRIPTOR": kinds[name], "__module__": __name__}) for name in kinds}
    globals().update(made, UnknownFieldSet=UnknownFieldSet)
