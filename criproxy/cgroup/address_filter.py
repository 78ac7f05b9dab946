"""Whether this machine lets criproxy reach an address: its unit has `IPAddressDeny=any`.

systemd drops such packets in a BPF program of the service's cgroup. A TCP connection then never comes about, as if the
other side were away, and nothing says why; a datagram is refused at once. So after a failure an empty one is sent.

Source: systemd.resource-control(5), IPAddressAllow=; Linux, net/ipv4/tcp_output.c, tcp_connect, which heeds
ECONNREFUSED alone.
"""

import socket
from collections.abc import Iterable


def is_barred(address: str, port: int) -> bool:
    """Sends a datagram without content. Never raises, never waits. A firewall that drops what goes out counts, too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as one:
            one.sendto(b"", (address, port))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def remedy(addresses: Iterable[str]) -> str:
    """A sentence's second half. The command takes force at once, and stays."""
    command = f'`systemctl set-property criproxy.service IPAddressAllow="{" ".join(addresses)}"`'
    return f"this machine does not let criproxy reach it (IPAddressDeny= of criproxy.service, or a firewall): {command}"
