"""The messages of ledger-api/ledger.proto. The door that needs them has their classes made, by its import of this."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from criproxy_cluster.ledger.ledger_pb2 import *  # noqa: F403
else:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    from criproxy_cluster.ledger.ledger_descriptor import FILE

    _pool = DescriptorPool()
    _pool.AddSerializedFile(FILE)
    for _name, _kind in _pool.FindFileByName("ledger.proto").message_types_by_name.items():
        globals()[_name] = GetMessageClass(_kind)
