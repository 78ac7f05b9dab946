"""CRI's messages: their classes, whichever implementation of protobuf makes them."""

import subprocess
import sys

import pytest

from criproxy.fronts.cri import messages

REQUEST = """
config = messages.PodSandboxConfig()
config.metadata.name = b"web"
config.labels.add(key=b"a", value=b"b")
config.linux.resources.cpu_shares = 2
request = messages.RunPodSandboxRequest(config=config)
request.MergeFromString(b"\\x7a\\x01x")
assert len(messages.UnknownFieldSet(request)) == 1
print(request.SerializeToString().hex())
"""

WITHOUT_C = "import sys\nsys.modules['google._upb'] = None\n"


def serialized(before: str) -> str:
    code = f"{before}from criproxy.fronts.cri import messages\n{REQUEST}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("before", ["", WITHOUT_C], ids=["in C", "in Python"])
def test_messages_have_the_same_bytes_by_either_implementation_of_protobuf(before: str) -> None:
    name, label, shares = b"\n\x05\n\x03web", b"2\x06\n\x01a\x12\x01b", b"B\x04*\x02\x18\x02"
    config = name + label + shares
    assert bytes.fromhex(serialized(before)) == b"\n" + bytes([len(config)]) + config + b"\x7a\x01x"


def test_what_cri_proto_does_not_have_is_named() -> None:
    with pytest.raises(AttributeError, match=r"cri\.proto has no NoSuchMessage"):
        _ = messages.NoSuchMessage  # type: ignore[attr-defined]
