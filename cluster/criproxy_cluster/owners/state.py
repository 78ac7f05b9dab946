"""What there is to be seen of the owners' keeper. Pure."""

from msgspec import Struct

from criproxy_cluster.owners.pods import Owner
from criproxy_cluster.owners.rules import Past


class OwnersState(Struct):
    """Of this term. `worst`: the owners that wait longest, or were evicted most."""

    owners: int = 0
    waiting: int = 0
    raised: int = 0
    overflowed: int = 0
    worst: list[tuple[Owner, Past]] = []
    raises: int = 0
    remakes: int = 0
    failures: int = 0
    problem: str = ""
