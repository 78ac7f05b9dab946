import socket

import pytest

from integration.demo import DemoError
from integration.demo.place import check_port


def test_check_port_taken_says_so_and_free_passes() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DemoError, match=f"Port 127.0.0.1:{port} is taken.*--port"):
            check_port(port)
    check_port(port)
