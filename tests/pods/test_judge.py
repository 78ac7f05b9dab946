"""Facts in, judgement out: each row of the table in criproxy.pods.admission."""

import pytest
from msgspec.structs import replace

from criproxy.cgroup.naming import parse_kubelet_parent, parse_placement
from criproxy.hooks.offline import OfflineRules, Rule, Subject, Test
from criproxy.model import Operation, Pod, PodRef, Resources, Sandbox
from criproxy.pods.admission import (
    AdmissionSettings,
    Admit,
    BoxStep,
    Cause,
    Facts,
    Judgement,
    Pass,
    Refuse,
    cpus_asked,
    judge,
)

ON = AdmissionSettings(True, OfflineRules((Rule(Subject.LABEL, "class", Test.EQUALS, "offline"),)))
OFF, DRY, CLOSED = replace(ON, enabled=False), replace(ON, dry_run=True), replace(ON, closed="the schedule is off")

REF = PodRef("1", "batch", "job")
KUBELETS, BOXED = "/kubepods/besteffort/pod1", "/offline/pod1"
OFFLINE, ONLINE = Pod(REF, {"class": "offline"}, cgroup_parent=KUBELETS), Pod(REF, cgroup_parent=KUBELETS)
PLACED, ELSEWHERE = Sandbox("s1", REF, BOXED), Sandbox("s1", REF, None)

RUN, RESTORE, CREATE = Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD, Operation.CREATE_CONTAINER
UPDATE, RESIZE = Operation.UPDATE_CONTAINER_RESOURCES, Operation.UPDATE_POD_SANDBOX_RESOURCES

WHY = 'label class is "offline"'
ADMITTED = Admit(parse_kubelet_parent(KUBELETS), WHY, (BoxStep.ADMIT, BoxStep.FIND_CPUS))
FOLLOWS = Admit(parse_placement(BOXED), "its sandbox is in the box", (BoxStep.CHECK_PATHS, BoxStep.FIND_CPUS))
RESIZED = replace(FOLLOWS, steps=(BoxStep.RESIZE, BoxStep.FIND_CPUS))


def closed(why: str) -> Refuse:
    return Refuse(Cause.CLOSED, f"{why}; kubelet tries again by itself")


def no_place(detail: str) -> Refuse:
    return Refuse(Cause.NO_PLACE, f"{detail}; the pod is offline: {WHY}")


UNTOLD = Refuse(Cause.UNDECODABLE, "it can't be told whether its pod is offline, as 3 bytes are no message")
FAULT = Refuse(Cause.HOOK_FAILED, "KeyError: 7")
PRIVILEGED = Refuse(Cause.UNBOUNDABLE, f"no privileged pods; the pod is offline: {WHY}")
NOT_OF_THE_POD = no_place("cgroup_parent '/kubepods/pod2' is not the cgroup of a pod with uid '1'")
NOT_KUBELETS = no_place("cgroup_parent '/other/pod1' is not directly below a kubepods cgroup")


def restored(judged: Judgement) -> Judgement:
    """The same of a call that brings the pod's containers, too."""
    match judged:
        case Admit():
            return replace(judged, steps=(BoxStep.CHECK_PATHS, *judged.steps))
        case Pass(Admit() as otherwise):
            return Pass(restored(otherwise))  # type: ignore[arg-type]
        case _:
            return judged


@pytest.mark.parametrize("operation", [RUN, RESTORE])
@pytest.mark.parametrize(
    ("pod", "facts", "settings", "expected"),
    [
        pytest.param(ONLINE, {}, ON, Pass(), id="online"),
        pytest.param(ONLINE, {}, CLOSED, Pass(), id="online-while-closed"),
        pytest.param(ONLINE, {"held": "it printed"}, ON, Pass(), id="online-and-held"),
        pytest.param(ONLINE, {"fault": "KeyError: 7"}, ON, Pass(), id="online-amid-a-fault"),
        pytest.param(ONLINE, {}, DRY, Pass(), id="online-in-a-dry-run"),
        pytest.param(OFFLINE, {}, OFF, Pass(), id="offline-while-off"),
        pytest.param(OFFLINE, {}, replace(CLOSED, enabled=False), Pass(), id="offline-while-off-and-closed"),
        pytest.param(OFFLINE, {}, ON, ADMITTED, id="offline"),
        pytest.param(OFFLINE, {}, CLOSED, closed("the schedule is off"), id="closed"),
        pytest.param(OFFLINE, {"held": "it printed"}, ON, closed("it printed"), id="held"),
        pytest.param(OFFLINE, {"held": "it printed"}, CLOSED, closed("the schedule is off"), id="closed-and-held"),
        pytest.param(OFFLINE, {"fault": "KeyError: 7"}, ON, FAULT, id="fault"),
        pytest.param(replace(OFFLINE, cgroup_parent="/kubepods/pod2"), {}, ON, NOT_OF_THE_POD, id="another-s-place"),
        pytest.param(replace(OFFLINE, cgroup_parent="/other/pod1"), {}, ON, NOT_KUBELETS, id="not-kubelet-s-place"),
        pytest.param(ONLINE, {"unboundable": "no privileged pods"}, ON, Pass(), id="online-and-privileged"),
        pytest.param(OFFLINE, {"unboundable": "no privileged pods"}, ON, PRIVILEGED, id="privileged"),
        pytest.param(OFFLINE, {"unboundable": "no privileged pods"}, CLOSED, PRIVILEGED, id="privileged-while-closed"),
        pytest.param(OFFLINE, {"unboundable": "no privileged pods"}, OFF, Pass(), id="privileged-while-off"),
        pytest.param(OFFLINE, {"unboundable": "no privileged pods"}, DRY, Pass(PRIVILEGED), id="dry-run-privileged"),
        pytest.param(OFFLINE, {}, DRY, Pass(ADMITTED), id="dry-run"),
        pytest.param(OFFLINE, {"held": "it printed"}, DRY, Pass(closed("it printed")), id="dry-run-held"),
        pytest.param(OFFLINE, {"fault": "KeyError: 7"}, DRY, Pass(FAULT), id="dry-run-fault"),
        pytest.param(
            replace(OFFLINE, cgroup_parent="/other/pod1"), {}, DRY, Pass(NOT_KUBELETS), id="dry-run-without-a-place"
        ),
    ],
)
def test_judge_start(
    operation: Operation, pod: Pod, facts: dict[str, str], settings: AdmissionSettings, expected: Judgement
) -> None:
    if operation is RESTORE:
        expected = restored(expected)
    assert judge(Facts(operation, pod, **facts), settings) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [ON, OFF, CLOSED], ids=["on", "off", "closed"])
@pytest.mark.parametrize(
    ("operation", "sandbox", "expected"),
    [
        pytest.param(CREATE, PLACED, FOLLOWS, id="create-placed"),
        pytest.param(UPDATE, PLACED, RESIZED, id="update-placed"),
        pytest.param(RESIZE, PLACED, RESIZED, id="resize-placed"),
        *(pytest.param(one, ELSEWHERE, Pass(), id=f"{one}-elsewhere") for one in (CREATE, UPDATE, RESIZE)),
        *(pytest.param(one, None, Pass(), id=f"{one}-nobody-knows") for one in (CREATE, UPDATE, RESIZE)),
    ],
)
def test_judge_follower_goes_by_its_sandbox_alone(
    settings: AdmissionSettings, operation: Operation, sandbox: Sandbox | None, expected: Judgement
) -> None:
    for pod in (OFFLINE, ONLINE, None):
        assert judge(Facts(operation, pod, sandbox), settings) == expected


@pytest.mark.parametrize(
    ("sandbox", "settings", "expected"),
    [
        pytest.param(PLACED, ON, closed("it printed"), id="placed"),
        pytest.param(PLACED, DRY, replace(FOLLOWS, steps=()), id="placed-in-a-dry-run"),
        pytest.param(ELSEWHERE, ON, Pass(), id="elsewhere"),
        pytest.param(None, ON, Pass(), id="nobody-knows"),
    ],
)
def test_judge_container_of_a_pod_that_is_itself_held(
    sandbox: Sandbox | None, settings: AdmissionSettings, expected: Judgement
) -> None:
    assert judge(Facts(CREATE, OFFLINE, sandbox, held="it printed"), settings) == expected


@pytest.mark.parametrize(
    ("sandbox", "settings", "expected"),
    [
        pytest.param(PLACED, ON, Refuse(Cause.UNBOUNDABLE, "no privileged pods"), id="placed"),
        pytest.param(PLACED, OFF, Refuse(Cause.UNBOUNDABLE, "no privileged pods"), id="placed-while-off"),
        pytest.param(PLACED, DRY, replace(FOLLOWS, steps=()), id="placed-in-a-dry-run"),
        pytest.param(ELSEWHERE, ON, Pass(), id="elsewhere"),
        pytest.param(None, ON, Pass(), id="nobody-knows"),
    ],
)
def test_judge_container_that_asks_for_what_would_let_it_leave(
    sandbox: Sandbox | None, settings: AdmissionSettings, expected: Judgement
) -> None:
    assert judge(Facts(CREATE, OFFLINE, sandbox, unboundable="no privileged pods"), settings) == expected


@pytest.mark.parametrize("operation", [CREATE, UPDATE, RESIZE])
@pytest.mark.parametrize(("sandbox", "expected"), [(PLACED, FAULT), (ELSEWHERE, Pass()), (None, Pass())])
def test_judge_follower_amid_a_fault_goes_by_its_sandbox_alone(
    operation: Operation, sandbox: Sandbox | None, expected: Judgement
) -> None:
    assert judge(Facts(operation, sandbox=sandbox, fault="KeyError: 7"), ON) == expected


def test_judge_follower_of_a_sandbox_whose_place_is_none_is_denied() -> None:
    judged = judge(Facts(UPDATE, sandbox=Sandbox("s1", REF, "nowhere")), ON)
    assert isinstance(judged, Refuse)
    assert judged.cause is Cause.HOOK_FAILED


@pytest.mark.parametrize("operation", [CREATE, UPDATE, RESIZE])
def test_judge_follower_in_a_dry_run_keeps_the_place_and_asks_nothing_of_the_box(operation: Operation) -> None:
    assert judge(Facts(operation, OFFLINE, PLACED), DRY) == replace(FOLLOWS, steps=())


@pytest.mark.parametrize(
    ("operation", "pod", "settings", "refused"),
    [
        pytest.param(CREATE, OFFLINE, ON, True, id="create-offline"),
        pytest.param(CREATE, OFFLINE, DRY, True, id="create-offline-in-a-dry-run"),
        pytest.param(CREATE, OFFLINE, OFF, False, id="create-while-off"),
        pytest.param(CREATE, ONLINE, ON, False, id="create-online"),
        pytest.param(UPDATE, None, ON, False, id="update"),
        pytest.param(RESIZE, None, ON, False, id="resize"),
    ],
)
def test_judge_follower_of_a_silent_runtime(
    operation: Operation, pod: Pod | None, settings: AdmissionSettings, refused: bool
) -> None:
    judged = judge(Facts(operation, pod, unknown="no answer"), settings)
    assert judged == (Refuse(Cause.UNKNOWN_SANDBOX, "no answer") if refused else Pass())


@pytest.mark.parametrize(
    ("operation", "settings", "any_placed", "refused"),
    [
        pytest.param(RUN, ON, False, True, id="start"),
        pytest.param(RUN, DRY, True, False, id="start-in-a-dry-run"),
        pytest.param(RESTORE, OFF, True, False, id="start-while-off"),
        pytest.param(CREATE, ON, False, True, id="create"),
        pytest.param(UPDATE, OFF, True, True, id="update-beside-placed-pods-while-off"),
        pytest.param(RESIZE, DRY, True, True, id="resize-beside-placed-pods-in-a-dry-run"),
        pytest.param(CREATE, OFF, False, False, id="create-while-off-and-nobody-placed"),
        pytest.param(UPDATE, DRY, False, False, id="update-in-a-dry-run-and-nobody-placed"),
    ],
)
def test_judge_undecodable(operation: Operation, settings: AdmissionSettings, any_placed: bool, refused: bool) -> None:
    facts = Facts(operation, undecodable="3 bytes are no message", any_placed=any_placed)
    assert judge(facts, settings) == (UNTOLD if refused else Pass())


@pytest.mark.parametrize(
    ("lists", "asked"),
    [
        pytest.param(["0-1", "3"], {0, 1, 3}, id="together"),
        pytest.param(["", "all of them", "2"], {2}, id="no-list"),
        pytest.param([], frozenset(), id="none"),
    ],
)
def test_cpus_asked(lists: list[str], asked: set[int]) -> None:
    assert cpus_asked(Resources(cpuset_cpus=one) for one in lists) == asked
