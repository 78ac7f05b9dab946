"""What the author of a pod writes is read in time that grows with its length, whatever it is; and each has its row."""

import contextlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from criproxy.kube.objects import BoundPod, ObjectError
from criproxy.vocabulary import names
from criproxy_cluster.ledger.pods import PodObject
from criproxy_cluster.ledger.pods import pod_of as counted
from criproxy_cluster.owners.history import Written, encoded
from criproxy_cluster.owners.pods import OwnedPodObject, owned_pod
from criproxy_cluster.owners.rules import Overflow as OverflowRule
from criproxy_cluster.owners.rules import OwnersSpec, Rule
from criproxy_cluster.webhook.conversion import ConversionError, ConversionSettings, converted
from criproxy_cluster.webhook.overflow import Overflow
from docs.author_text import (
    CLUSTER,
    LEFT,
    ROWS,
    UNKNOWN,
    AuthorText,
    ClusterText,
    Kind,
    container_read,
    keys,
    of_spec,
    page,
    pod_of,
    readers_of_pod,
)

LONG, SHORT = 64 * 1024, 16 * 1024
MOST_S = 0.005
RATIO = LONG / SHORT
LITTLE_S = 0.0005
"""Below this, a ratio says nothing."""
TRIES = 30
"""Of which the least counts: all cores may be busy."""


def repeated(part: str, begin: str = "", end: str = "") -> Callable[[int], str]:
    return lambda size: begin + part * ((size - len(begin) - len(end)) // len(part)) + end


def containers(form: str, kind: str = "containers") -> Callable[[int], str]:
    """JSON of as many containers as there is room for; %d is the number of each."""

    def made(size: int) -> str:
        found, left = list[str](), size - 40
        while (left := left - len(one := form.replace("%d", str(len(found)))) - 1) > 0:
            found.append(one)
        return f'{{"{kind}":{{{",".join(found)}}}}}'

    return made


WORST = {
    "digits": repeated("1"),
    "digits and a letter": repeated("1", end="x"),
    "two numbers": repeated("1.", end="x"),
    "points": repeated("."),
    "exponent": repeated("1", "1e", "x"),
    "blanks": repeated(" ", end="x"),
    "signs": repeated("-"),
    "commas": repeated("0-9,"),
    "ranges": repeated("0-65535,"),
    "slashes": repeated("/"),
    "a path": repeated("/kubepods", "/kubepods"),
    "slices": repeated("a-", end=".slice"),
    "letters": repeated("a"),
    "no text": repeated("\udcff"),
    "lists": repeated("["),
    "tables": repeated('{"containers":'),
    "a number of JSON": repeated("1", '{"containers":{"a":{"limits":{"cpu":', "}}}}"),
    "a quantity": repeated("1", '{"containers":{"a":{"limits":{"cpu":"', 'x"}}}}'),
    "escapes": repeated("\\u00e9", '{"containers":{"a":{"limits":{"cpu":"', '"}}}}'),
    "empty containers": containers('"%d":{}'),
    "empty init containers": containers('"%d":{"restartPolicy":"Always"}', "initContainers"),
    "limits": containers('"%d":{"limits":{"cpu":"%dm","memory":"%dKi"}}'),
    "fractions": containers('"%d":{"requests":{"cpu":"%d.%de-9"}}'),
    "names": containers('"%d":0', "x"),
    "a query": repeated("$pod", '{"prometheus":{"query":"', '"},"threshold":1}'),
    "capabilities": lambda size: "CHOWN," * (size // 12) + "KILL," * (size // 12) + "BPF",
    "other capabilities": lambda size: ",".join(f"{number:x}" for number in range(size // 5)),
    "words": repeated('"a",', '{"exec":{"command":[', '"a"]}}'),
}


def cost_s(read: Callable[[str], object], text: str) -> float:
    """The least of some tries, in CPU time of this thread: no other load on the machine counts."""

    def tried() -> float:
        began_s = time.thread_time()
        with contextlib.suppress(ValueError):
            read(text)
        return time.thread_time() - began_s

    least_s = tried()
    for _ in range(TRIES - 1):
        if least_s < LITTLE_S:
            break
        least_s = min(least_s, tried())
    return least_s


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind} {row.names[0]}")
def test_worst_text_costs_what_its_length_says(row: AuthorText) -> None:
    check_cost(row.read)


def check_cost(read: Callable[[str], object]) -> None:
    costs = {name: (cost_s(read, made(SHORT)), cost_s(read, made(LONG))) for name, made in WORST.items()}

    assert {name: of for name, of in costs.items() if of[1] > MOST_S} == {}
    steep = {name: of for name, of in costs.items() if of[1] > 2 * RATIO * max(of[0], LITTLE_S)}
    assert steep == {}, "a cost that grows faster than the text"


RULE = OwnersSpec(namespaces=("batch",), overflow=OverflowRule(pods=1000, deadline_margin_seconds=1))
OVERFLOW = Overflow(lambda: 0.0, lambda: 0.0)
OVERFLOW.hear(encoded(Written(rules=[Rule("all", RULE)], virtual=True)))


def cluster_pod(row: ClusterText, text: str) -> dict[str, Any]:
    """A pod with the text at the row's place."""
    meta: dict[str, Any] = {"uid": "u", "name": "pod", "namespace": "batch", "labels": {names.CLASS: names.OFFLINE}}
    spec: dict[str, Any] = {"containers": [{"name": "main"}]}
    if row.kind != "field":
        place = meta.setdefault(f"{row.kind}s", {})
        place |= dict.fromkeys(row.names, text)
    elif row.names[0].startswith("metadata.ownerReferences"):
        meta["ownerReferences"] = [{"kind": text, "name": text, "uid": text, "controller": True}]
    else:
        amounts = {"cpu": text, "kubernetes.io/batch-cpu": text, f"a.example/{text}": text}
        one = {"name": "main", "resources": {"requests": amounts, "limits": amounts}}
        spec = {"containers": [one], "initContainers": [one], "overhead": amounts}
    return {"metadata": meta, "spec": spec}


def cluster_read(row: ClusterText, text: str) -> None:
    """All that the cluster's side reads of such a pod."""
    pod = cluster_pod(row, text)
    with contextlib.suppress(ConversionError):
        converted(pod, ConversionSettings(require_plugin=True))
    OVERFLOW.why(pod, "batch", counts=False)
    owned_pod(msgspec.convert(pod, OwnedPodObject))
    counted(msgspec.convert(pod, PodObject))


@pytest.mark.parametrize("row", CLUSTER, ids=lambda row: f"{row.kind} {row.names[0]}")
def test_worst_text_costs_the_cluster_s_side_what_its_length_says(row: ClusterText) -> None:
    assert all(callable(pkgutil.resolve_name(f"criproxy_cluster.{one}")) for one in row.readers)
    check_cost(lambda text: cluster_read(row, text))


@pytest.mark.parametrize("made", WORST.values(), ids=WORST)
def test_what_is_logged_of_a_container_s_own_words_is_bounded(made: Callable[[int], str]) -> None:
    for text in (made(LONG), made(2048)):
        assert len(str(container_read(text))) < 16 * 1024


class Recorded(dict[str, str]):
    """Every key but one has the text; which were asked for is known."""

    def __init__(self, text: str, absent: str = "") -> None:
        super().__init__()
        self.text, self.absent, self.asked = text, absent, set[str]()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked.add(key)
        return default if key == self.absent else self.text

    def __getitem__(self, key: str) -> str:
        return self.text

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key != self.absent


@pytest.mark.parametrize("kind", ["label", "annotation"])
def test_each_key_that_is_read_of_a_pod_has_its_row_and_the_other_way_round(kind: Kind) -> None:
    asked = set[str]()
    for text in ("", "x", "{}", "true"):
        for absent in ("", *keys(kind)):
            for namespace in ("batch", "kube-system"):
                marks = Recorded(text, absent)
                readers_of_pod(pod_of(kind, marks, namespace))
                asked |= marks.asked

    assert asked == set(keys(kind)) - {names.PLACEMENT}, "the placement is read where the runtime lists its sandboxes"


def test_each_name_of_a_pods_in_the_vocabulary_has_its_row() -> None:
    of_others = {
        names.PUBLISHES, names.POLICY, names.POLICIES, names.POLICY_STATUS, names.EVICTED, names.EVICTED_FROM,
        names.SWITCH, names.MANAGED, names.PRESSURE, names.FOR_OFFLINE, names.SUSPENDED,
        names.SUSPENDS, names.GIVES_BACK, names.ANNOTATION_MARKS,
    }  # fmt: skip
    of_the_clusters_side = {name for row in CLUSTER for name in row.names}
    assert set(_vocabulary()) - of_others - of_the_clusters_side <= {*keys("label"), *keys("annotation")}
    assert of_the_clusters_side >= {names.DEADLINE, names.ALONE_SECONDS, names.OVERFLOW, names.RAISED}


def _vocabulary() -> Iterator[str]:
    for name, value in vars(names).items():
        if name.isupper() and isinstance(value, str) and ("/" in value or "." in value) and name != "PREFIX":
            yield value


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("priority", lambda pod: pod.spec.priority),
        ("terminationGracePeriodSeconds", lambda pod: pod.spec.termination_grace_period_seconds),
    ],
)
def test_number_of_a_spec_reaches_its_reader_and_is_no_text(name: str, read: Callable[[BoundPod], object]) -> None:
    assert read(of_spec(name, "-17")) == -17
    for text in ('"17"', "1.5", "1e400", "[]"):
        with pytest.raises(ObjectError):
            of_spec(name, text)


def test_page_has_a_row_for_each() -> None:
    assert page().count("\n| ") == len(ROWS) + 1 + len(CLUSTER) + 1 + len(UNKNOWN) + 1 + len(LEFT) + 1
