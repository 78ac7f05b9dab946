"""Requests that we and the runtime's protobuf could read differently: no offline pod passes as an online one."""

import random

import pytest
import structlog

from criproxy.fronts.cri import codec
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.engine import AnswerError, Forward
from criproxy.hooks.offline import OfflineRules, Rule, Subject, Test
from criproxy.model import PLACEMENT_ANNOTATION, Operation
from criproxy.pods.admission import AdmissionSettings
from tests.fakes.placing import BOXED, KUBELET, RULES, ScriptedRuntime
from tests.fronts import gogo
from tests.fronts.cri.test_intercept import V1, Bench, create_request, run_request

UNDECODABLE = b"\xff\xff\xff"


def varint(value: int, size: int = 0) -> bytes:
    """In `size` bytes, or as few as it takes."""
    out = bytearray()
    while value > 0x7F or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(number: int, payload: bytes, *, kind: int = 2, tag_bytes: int = 0, size_bytes: int = 0) -> bytes:
    """A field with a length, in whatever wire type and spelling."""
    return varint(number << 3 | kind, tag_bytes) + varint(len(payload), size_bytes) + payload


METADATA = text(1, text(1, b"job") + text(2, b"1") + text(3, b"batch"))
LINUX = text(8, text(1, KUBELET.encode()))
LABEL = text(1, b"class") + text(2, b"offline")
POD = METADATA + text(6, LABEL) + LINUX
GROUPS = 101

HIDEABLE = "\x1a\x01x"
"""A label's key that is a field, too: gogo can be shown a key where ours sees fields of its own."""

TWO_RULES = OfflineRules((*RULES.rules, Rule(Subject.LABEL, HIDEABLE, Test.PRESENT, "")))

CRAFTED: dict[str, bytes] = {
    "field-number-2^29": text(1, POD + varint((1 << 29) << 3) + b"\0"),
    "field-number-2^31-1": text(1, POD + varint(((1 << 31) - 1) << 3) + b"\0"),
    "label-under-a-number-that-gogo-cuts-to-32-bits": text(
        1, METADATA + varint((6 + (1 << 32)) << 3 | 2) + varint(len(LABEL)) + LABEL + LINUX
    ),
    "tag-in-6-bytes": text(1, METADATA + text(6, LABEL, tag_bytes=6) + LINUX),
    "tag-in-10-bytes": text(1, METADATA + text(6, LABEL, tag_bytes=10) + LINUX),
    "length-in-6-bytes": text(1, METADATA + text(6, LABEL, size_bytes=6) + LINUX),
    "length-of-all-in-10-bytes": text(1, POD, size_bytes=10),
    "groups-over-100-deep": text(1, POD + varint(100 << 3 | 3) * GROUPS + varint(100 << 3 | 4) * GROUPS),
    "groups-over-100-deep-in-the-request": text(1, POD) + varint(100 << 3 | 3) * GROUPS + varint(100 << 3 | 4) * GROUPS,
    "group-that-another-s-end-closes": text(1, POD + varint(100 << 3 | 3) + varint(101 << 3 | 4)),
    "key-as-a-varint-field": text(1, METADATA + text(6, text(1, HIDEABLE.encode(), kind=0)) + LINUX),
    "label-twice-the-last-counts": text(
        1, METADATA + text(6, text(1, b"class") + text(2, b"x")) + text(6, LABEL) + LINUX
    ),
    "value-twice-the-last-counts": text(
        1, METADATA + text(6, text(1, b"class") + text(2, b"x") + text(2, b"offline")) + LINUX
    ),
    "value-before-its-key": text(1, METADATA + text(6, text(2, b"offline") + text(1, b"class")) + LINUX),
    "config-in-pieces": text(1, METADATA) + text(1, text(6, LABEL)) + text(1, LINUX),
    "tags-and-lengths-in-5-bytes": text(
        1, METADATA + text(6, LABEL, tag_bytes=5, size_bytes=5) + LINUX, tag_bytes=5, size_bytes=5
    ),
    "text-that-is-not-utf-8": text(1, POD + text(6, text(1, b"\xff") + text(2, b"\xfe"))),
}
"""Requests of offline pods that gogo takes."""


def is_offline(pod: gogo.Read) -> bool:
    """By TWO_RULES."""
    return pod.labels.get(b"class") == b"offline" or HIDEABLE.encode() in pod.labels


def is_bounded(verdict: Forward | AnswerError) -> bool:
    """Whether no offline pod can start outside the box by it."""
    if isinstance(verdict, AnswerError):
        return True
    try:
        pod = gogo.run_pod_sandbox(verdict.message)
    except gogo.GogoError:
        return True
    placement = pod.annotations.get(PLACEMENT_ANNOTATION.encode())
    return not is_offline(pod) or (pod.cgroup_parent == placement == b"/offline/pod" + pod.uid)


@pytest.mark.parametrize("request_bytes", CRAFTED.values(), ids=CRAFTED)
def test_crafted_request_that_gogo_takes_starts_no_offline_pod_outside_the_box(request_bytes: bytes) -> None:
    gogo.run_pod_sandbox(request_bytes)
    bench = Bench()
    bench.configure(AdmissionSettings(True, TWO_RULES))
    assert is_bounded(bench.run(request_bytes))


def test_oracle_reads_a_plain_request_as_we_do() -> None:
    pod = gogo.run_pod_sandbox(run_request(True))
    assert (pod.name, pod.uid, pod.namespace) == (b"job", b"1", b"batch")
    assert (pod.cgroup_parent.decode(), is_offline(pod)) == (KUBELET, True)


# --- generated ones -------------------------------------------------------------------------------------------------


def _spelled(chance: random.Random, number: int, payload: bytes, *, in_entry: bool = False) -> bytes:
    odd = chance.random() < 0.08
    kind = chance.choice((0, 1, 3, 5, 6, 7)) if odd and in_entry else 2
    tag_bytes = chance.choice((0, 0, 0, 2, 5, 6, 10)) if odd else 0
    size_bytes = chance.choice((0, 0, 0, 2, 5, 6, 10)) if odd else 0
    if odd and chance.random() < 0.2:
        number += 1 << 32
    return text(number, payload, kind=kind, tag_bytes=tag_bytes, size_bytes=size_bytes)


def _unknown(chance: random.Random) -> bytes:
    number = chance.choice((9, 15, 100, (1 << 29) - 1, 1 << 29))
    depth = chance.choice((1, 2, 99, 101))
    return chance.choice(
        (
            varint(number << 3) + varint(chance.getrandbits(40)),
            varint(number << 3 | 1) + bytes(8),
            text(number, chance.randbytes(5)),
            varint(number << 3 | 5) + bytes(4),
            varint(number << 3 | 3) * depth + varint((number + chance.choice((0, 0, 1))) << 3 | 4) * depth,
        )
    )


def _entry(chance: random.Random) -> bytes:
    key = chance.choice((b"class", b"class", b"a", b"\x1a\x01x", b"\x18\x01\x18\x01", b""))
    value = chance.choice((b"offline", b"offline", b"online", b"\x1a\x01x", b"\x1d\0\0\0\0"))
    parts = [_spelled(chance, 1, key, in_entry=True), _spelled(chance, 2, value, in_entry=True)]
    if chance.random() < 0.1:
        parts.append(_spelled(chance, 2, chance.choice((b"offline", b"online")), in_entry=True))
    if chance.random() < 0.1:
        parts.append(_unknown(chance))
    chance.shuffle(parts)
    return b"".join(parts)


def _crafted(chance: random.Random) -> bytes:
    metadata = b"".join(_spelled(chance, number, value) for number, value in ((1, b"job"), (2, b"1"), (3, b"batch")))
    parts = [_spelled(chance, 1, metadata), _spelled(chance, 8, _spelled(chance, 1, KUBELET.encode()))]
    parts += [_spelled(chance, 6, _entry(chance)) for _ in range(chance.randint(1, 3))]
    parts += [_spelled(chance, 7, _entry(chance)) for _ in range(chance.randint(0, 1))]
    parts += [_unknown(chance) for _ in range(chance.randint(0, 1))]
    chance.shuffle(parts)
    cut = chance.randint(0, len(parts))
    pieces = (parts[:cut], parts[cut:]) if chance.random() < 0.3 else (parts,)
    data = bytearray(b"".join(_spelled(chance, 1, b"".join(piece)) for piece in pieces))
    if chance.random() < 0.2:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def test_whatever_the_spelling_no_offline_pod_starts_outside_the_box() -> None:
    bench, chance, offline, ours = Bench(), random.Random(12), 0, 0
    bench.configure(AdmissionSettings(True, TWO_RULES))
    with structlog.testing.capture_logs():
        for _ in range(6000):
            data = _crafted(chance)
            verdict = bench.intercept.request(V1 + "RunPodSandbox", data)
            if not isinstance(verdict, Forward | AnswerError):
                verdict = _driven(verdict)
            assert is_bounded(verdict), data.hex()
            try:
                taken = is_offline(gogo.run_pod_sandbox(data))
            except gogo.GogoError:
                continue
            offline += taken
            ours += taken and isinstance(verdict, Forward)
    assert (offline > 1000, ours > 500) == (True, True), (offline, ours)


def _driven(verdict: object) -> Forward | AnswerError:
    """The result of a coroutine that waits for nothing."""
    try:
        verdict.send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        assert isinstance(stop.value, Forward | AnswerError)
        return stop.value
    raise AssertionError("it waits")


# --- what is refused, and when --------------------------------------------------------------------------------------

OPERATIONS = (
    "RunPodSandbox",
    "RestorePod",
    "CreateContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_undecodable_request_is_refused_while_colocation_is_on(operation: str) -> None:
    bench = Bench()
    with structlog.testing.capture_logs() as logs:
        verdict = bench.send(V1 + operation, UNDECODABLE)
    assert isinstance(verdict, AnswerError)
    assert verdict.code == 13
    assert verdict.message.startswith(f"criproxy refuses {operation}: it can't be told whether its pod is offline")
    assert bench.counters.labelled("refusals") == ["undecodable"]
    assert [line["event"] for line in logs] == ["request_undecodable"]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(AdmissionSettings(False, RULES), id="off"),
        pytest.param(AdmissionSettings(True, RULES, dry_run=True), id="dry-run"),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_undecodable_request_passes_where_nothing_is_placed(operation: str, settings: AdmissionSettings) -> None:
    bench = Bench()
    bench.configure(settings)
    assert bench.send(V1 + operation, UNDECODABLE) == Forward(UNDECODABLE)
    assert bench.counters.labelled("refusals") == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_undecodable_request_that_could_be_of_a_pod_in_the_box_is_refused_after_a_switch_off(operation: str) -> None:
    bench = Bench()
    bench.run(run_request(True))
    bench.configure(AdmissionSettings(False, RULES))
    starts = operation in ("RunPodSandbox", "RestorePod")
    assert isinstance(bench.send(V1 + operation, UNDECODABLE), Forward if starts else AnswerError)


HIDDEN = text(1, b"k") + text(2, b"\x1a\x01x", kind=0)
"""A map's entry whose value only gogo sees."""


@pytest.mark.parametrize(
    ("operation", "data"),
    [
        pytest.param("RunPodSandbox", text(1, METADATA + text(6, HIDDEN)), id="label"),
        pytest.param("RunPodSandbox", text(1, METADATA + text(7, HIDDEN)), id="annotation"),
        pytest.param("RunPodSandbox", text(1, text(8, text(5, text(9, HIDDEN)))), id="sandbox-unified"),
        pytest.param("RestorePod", text(2, METADATA + text(6, HIDDEN)), id="restored-label"),
        pytest.param("RestorePod", text(5, text(15, text(1, text(9, HIDDEN)))), id="restored-unified"),
        pytest.param("CreateContainer", text(2, text(15, text(1, text(9, HIDDEN)))), id="container-unified"),
        pytest.param("CreateContainer", text(3, text(6, HIDDEN)), id="container-s-pod-label"),
        pytest.param("UpdateContainerResources", text(2, text(9, HIDDEN)), id="updated-unified"),
        pytest.param("UpdatePodSandboxResources", text(3, text(9, HIDDEN)), id="updated-pod-unified"),
    ],
)
def test_map_entry_that_hides_something_is_undecodable(operation: str, data: bytes) -> None:
    verdict = Bench().send(V1 + operation, data)
    assert isinstance(verdict, AnswerError)
    assert verdict.code == 13


def test_newer_fields_beside_a_map_are_no_reason_to_refuse() -> None:
    newer = text(1, POD + text(999, b"newer")) + text(999, b"newer")
    bench = Bench()
    assert isinstance(bench.run(newer), Forward)
    assert bench.box.admitted != []


def test_create_container_by_a_spelling_that_we_read_follows_its_sandbox() -> None:
    bench = Bench(runtime=ScriptedRuntime({"s1": BOXED}))
    message = create_request("s0", False) + text(1, b"s1", tag_bytes=5, size_bytes=5)
    verdict = bench.send(V1 + "CreateContainer", message)
    assert isinstance(verdict, Forward)
    rewritten = cri.CreateContainerRequest.FromString(verdict.message)
    assert rewritten.sandbox_config.linux.cgroup_parent.decode() == BOXED


def test_codec_says_which_bytes_it_can_not_read() -> None:
    with pytest.raises(codec.CodecError, match=r"3 bytes are no RunPodSandboxRequest: "):
        codec.Request(Operation.RUN_POD_SANDBOX, UNDECODABLE)


# --- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["runtime.v1", "runtime.v1alpha2"])
@pytest.mark.parametrize("method", [*OPERATIONS, "StartContainer", "RemovePodSandbox", "RemoveContainer"])
def test_path_is_matched_with_and_without_its_slash_as_grpc_go_does(service: str, method: str) -> None:
    wants = Bench().intercept.wants
    assert wants(f"/{service}.RuntimeService/{method}")
    assert wants(f"{service}.RuntimeService/{method}")
    for other in (
        f"//{service}.RuntimeService/{method}",
        f"/{service}.RuntimeService/{method}/",
        f"/x/{service}/{method}",
    ):
        assert not wants(other)


def test_start_without_the_path_s_slash_goes_to_the_box() -> None:
    bench = Bench()
    bench.run(run_request(True), service="runtime.v1.RuntimeService/")
    assert [s.placement for s in bench.inventory.placed] == [BOXED]
