"""The sentry's judgement of each container, and its end of the connection, as bytes."""

import contextlib
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.config.settings import Colocation, RuleTable
from criproxy.fronts.sentry.plugin import Rules, SentrySession
from criproxy.fronts.sentry.rules import SentryOrders
from criproxy.hooks.offline import CONFIG_SOURCE, OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.vocabulary.names import CLASS, OFFLINE, RESOURCES
from tests.fakes.nri import PLUGIN, RUNTIME, call, chunk, create, frame

OF_ALL_KINDS = Colocation(
    presets=("koordinator", "caelus"),
    rules=(
        RuleTable(label=CLASS, equals=OFFLINE),
        RuleTable(label="team", prefix="batch-"),
        RuleTable(annotation="spare", present=True),
        RuleTable(namespace=True, equals="night"),
    ),
).offline_rules()
MARKED = {CLASS: OFFLINE}
REFUSED = b"\x0a"
"""How a Response begins that has a status."""


def session(path: Path, rules: OfflineRules | None = OF_ALL_KINDS, *let_by: str) -> SentrySession:
    path.write_bytes(SentryOrders(() if rules is None else rules.every, let_by).encode())
    return SentrySession(Rules(str(path)))


def response(one: SentrySession, payload: bytes, method: str = "CreateContainer") -> bytes:
    answer = one.receive(call(1, method, payload))
    assert answer[:4] == PLUGIN.to_bytes(4, "big")
    return answer[18:]


PODS = {
    "no mark": ({}, {}, "shop"),
    "the mark": (MARKED, {}, "batch"),
    "another value of the mark": ({CLASS: "online"}, {}, "batch"),
    "the prefix": ({"team": "batch-7"}, {}, "shop"),
    "another prefix": ({"team": "shop"}, {}, "shop"),
    "the key is there": ({}, {"spare": ""}, "shop"),
    "the key is a label": ({"spare": ""}, {}, "shop"),
    "the namespace": ({}, {}, "night"),
    "a preset": ({"koordinator.sh/qosClass": "BE"}, {}, "shop"),
    "a preset's annotation": ({}, {"mixer.kubernetes.io/app-class": "greedy"}, "shop"),
    "a preset's annotation in kube-system": ({}, {"mixer.kubernetes.io/app-class": "greedy"}, "kube-system"),
    "converted": ({}, {RESOURCES: "{}"}, "shop"),
    "a static pod of the node": (MARKED, {CONFIG_SOURCE: "file"}, "kube-system"),
    "an offline pod in kube-system": (MARKED, {CONFIG_SOURCE: "api"}, "kube-system"),
}


@pytest.mark.parametrize(("labels", "annotations", "namespace"), PODS.values(), ids=PODS.keys())
def test_what_criproxy_calls_offline_is_refused_and_nothing_else(
    tmp_path: Path, labels: dict[str, str], annotations: dict[str, str], namespace: str
) -> None:
    pod = Pod(PodRef("u1", namespace, "job"), labels=labels, annotations=annotations)

    answer = response(session(tmp_path / "rules"), create(namespace=namespace, labels=labels, annotations=annotations))

    assert answer.startswith(REFUSED) == bool(OF_ALL_KINDS.why(pod))
    assert bool(answer) == answer.startswith(REFUSED)


def test_the_refusal_names_the_pod_and_the_rule(tmp_path: Path) -> None:
    answer = response(session(tmp_path / "rules"), create(labels=MARKED)).decode(errors="replace")

    assert f"pod batch/job is offline by its label {CLASS}, and criproxy has not placed this container" in answer


@pytest.mark.parametrize(
    "request_",
    [
        create(labels=MARKED, path="/offline/podu1/c1"),
        create(labels=MARKED, path="offline-podu1.slice:cri-containerd:c1"),
        create(labels=MARKED)[:-1],
        b"\xff" * 40,
        b"",
    ],
    ids=["in the box", "in the box by systemd", "cut off", "no message", "empty"],
)
def test_what_is_placed_or_not_understood_passes(tmp_path: Path, request_: bytes) -> None:
    assert response(session(tmp_path / "rules"), request_) == b""


def test_in_kubelets_cgroup_by_systemd_is_not_placed(tmp_path: Path) -> None:
    path = "kubepods-besteffort-podu1.slice:cri-containerd:c1"

    assert response(session(tmp_path / "rules"), create(labels=MARKED, path=path)).startswith(REFUSED)


def test_a_pod_that_started_before_the_rules_held_is_let_by(tmp_path: Path) -> None:
    assert response(session(tmp_path / "rules", OF_ALL_KINDS, "s1"), create(labels=MARKED)) == b""
    assert response(session(tmp_path / "rules", OF_ALL_KINDS, "s2"), create(labels=MARKED)).startswith(REFUSED)


NO_LIST = b'{"rules": [{"subject": "label", "key": "a", "test": "present", "value": "", "not_in": 1}], "let_by": []}'
BROKEN = (
    b"",
    b"{",
    b"{}",
    b"[]",
    b'{"rules": 1, "let_by": []}',
    b'{"rules": [{"key": "a"}], "let_by": []}',
    b"\xff",
    NO_LIST,
)


@pytest.mark.parametrize("content", BROKEN)
def test_broken_rules_leave_the_last_good_ones(tmp_path: Path, content: bytes) -> None:
    one = session(tmp_path / "rules")
    assert response(one, create(labels=MARKED)).startswith(REFUSED)

    (tmp_path / "rules").write_bytes(content)

    assert response(one, create(labels=MARKED)).startswith(REFUSED)
    assert response(one, create(namespace="shop")) == b""


def test_changed_rules_hold_from_the_next_container_on(tmp_path: Path) -> None:
    one = session(tmp_path / "rules", None)
    passed = response(one, create(labels=MARKED))
    session(tmp_path / "rules")
    refused = response(one, create(labels=MARKED))
    (tmp_path / "rules").unlink()

    assert passed == b""
    assert refused.startswith(REFUSED)
    assert response(one, create(labels=MARKED)) == b"", "without rules nobody is offline"


def test_it_asks_for_the_creation_of_containers_alone(tmp_path: Path) -> None:
    one = session(tmp_path / "rules")

    assert response(one, b"", "Configure") == b"\x12\x02\x10\x08"
    assert response(one, b"", "Shutdown") == b""
    assert response(one, b"", "RunPodSandbox")[2:4] == b"\x08\x0c", "UNIMPLEMENTED"


def test_synchronize_takes_parts(tmp_path: Path) -> None:
    one = session(tmp_path / "rules")

    assert response(one, b"\x0a\x03\x0a\x01s\x18\x01", "Synchronize") == b"\x12\x02\x10\x01", "there is more"
    assert response(one, b"\x0a\x03\x0a\x01s", "Synchronize") == b""


def test_registration(tmp_path: Path) -> None:
    frame = session(tmp_path / "rules").begin("criproxy-sentry", "99")

    assert frame[:4] == RUNTIME.to_bytes(4, "big")
    assert b"nri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin\x1a\x15\x0a\x0fcriproxy-sentry\x12\x0299" in frame


@given(seed=st.integers(0, 1 << 32))
def test_chunks_and_reads_may_be_cut_anywhere(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    chance, path = random.Random(seed), tmp_path_factory.getbasetemp() / f"rules-{os.getpid()}"
    whole, torn = session(path), session(path)
    frames = b"".join(
        frame(1 + 2 * n, "CreateContainer", create(labels=MARKED if n % 2 else {}, name="x" * chance.randrange(300)))
        for n in range(4)
    )
    pieces = b""
    while frames:
        cut = chance.randrange(1, 200)
        pieces += chunk(RUNTIME, b"\0" * chance.randrange(9)) + chunk(PLUGIN, frames[:cut])
        frames = frames[cut:]
    expected, answers = whole.receive(pieces), b""
    while pieces:
        cut = chance.randrange(1, 100)
        answers += torn.receive(pieces[:cut])
        pieces = pieces[cut:]

    assert answers == expected
    assert expected.count(b"is offline by its label") == 2


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_a_value_error(data: bytes) -> None:
    one = SentrySession(Rules("/nonexistent"))
    with contextlib.suppress(ValueError):
        one.receive(chunk(PLUGIN, len(data).to_bytes(4, "big") + b"\0\0\0\x01\x01\0" + data))


@given(st.binary(max_size=300))
def test_any_container_is_let_by_or_refused(data: bytes) -> None:
    one = SentrySession(Rules("/nonexistent"))
    assert response(one, data) == b""
