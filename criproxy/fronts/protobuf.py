"""Makes protobuf's classes of a serialized file, without the module that protoc makes.

protobuf's implementation in C does all of it, once it is given the descriptor. The usual way there, that module,
imports the implementation in Python as well, which is then never used: 1 MiB and 10 ms more.
"""

from collections.abc import Callable
from typing import Any


def attributes(module: dict[str, Any], load: Callable[[], None], file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of messages, which `load` makes when the first is used. `module`: its globals;
    `file`: where they are defined. It raises AttributeError for what is not there.
    """

    def attribute(name: str) -> Any:
        if name.startswith("_"):  # the import system asks for some
            raise AttributeError(name)
        load()
        try:
            return module[name]
        except KeyError:
            raise AttributeError(f"{file} has no {name}") from None

    return attribute


def classes(file: bytes, name: str, module: str) -> dict[str, Any]:
    """The messages of the file `name`, by their names, and `UnknownFieldSet`. `module` is where they will be found."""
    from google.protobuf.message import Message

    try:
        from google._upb._message import DescriptorPool, MessageMeta, UnknownFieldSet
    except ImportError:  # a protobuf without its part in C
        from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[assignment]
        from google.protobuf.reflection import GeneratedProtocolMessageType as MessageMeta  # type: ignore[assignment]
        from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.AddSerializedFile(file)
    kinds = pool.FindFileByName(name).message_types_by_name
    made = {one: MessageMeta(one, (Message,), {"DESCRIPTOR": kinds[one], "__module__": module}) for one in kinds}
    return {**made, "UnknownFieldSet": UnknownFieldSet}
