"""Imports CRI's messages without the megabyte that protobuf has for where its messages are made in Python.

What protoc generates imports that, and uses nothing of it where protobuf has its messages in C (upb). So an empty module
stands in for it meanwhile. Measured with protobuf 7.36.
"""

import sys
from types import ModuleType
from typing import Final

from google.protobuf.internal import api_implementation

PURE: Final = "google.protobuf.internal.python_message"

_stands_in: Final = api_implementation.Type() == "upb" and PURE not in sys.modules

if _stands_in:
    sys.modules[PURE] = ModuleType(PURE)
try:
    from criproxy.fronts.cri import cri_pb2 as cri_pb2  # noqa: PLC0414 - the messages
finally:
    if _stands_in:
        del sys.modules[PURE]
