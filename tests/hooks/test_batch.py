"""What a pod asks of what nodes lend, and what nonsense there does: nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.hooks.batch import asked_by, of_pod, once_initialized
from criproxy.model import Asked, ContainerKind
from criproxy.vocabulary.names import EXTENDED_SPEC, KEEP_REQUESTS, MOST_CONTAINERS, RESOURCES
from tests.cost import LONGEST, assert_cheap

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GIB = 1 << 30


def spec(**containers: object) -> dict[str, str]:
    return {EXTENDED_SPEC: json.dumps({"containers": containers})}


def ours(**containers: object) -> dict[str, str]:
    """As criproxy's own webhook writes it: see cluster/criproxy_cluster/webhook/conversion.py."""
    return {RESOURCES: json.dumps({"containers": containers})}


def wants(cpu: object = None, memory: object = None) -> dict[str, dict[str, object]]:
    """`memory` is a limit; the rest is what Koordinator writes beside it."""
    found: dict[str, dict[str, object]] = {"requests": {}, "limits": {}}
    if cpu is not None:
        found["requests"][CPU] = found["limits"][CPU] = cpu
    if memory is not None:
        found["requests"][MEMORY] = found["limits"][MEMORY] = memory
    return found


BOTH = spec(main=wants("2000", "4Gi"))


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        pytest.param({}, {}, id="not-there"),
        pytest.param(BOTH, {"main": Asked(2048, 4 * GIB, 2000)}, id="both"),
        pytest.param(spec(main=wants(100, 1000)), {"main": Asked(102, 1000, 100)}, id="bare-numbers"),
        pytest.param(spec(main=wants("2k", "1e3")), {"main": Asked(2048, 1000, 2000)}, id="suffix-and-exponent"),
        pytest.param(spec(main=wants("1", "1m")), {"main": Asked(2, 1, 1)}, id="least"),
        pytest.param(spec(main=wants("9000000")), {"main": Asked(262144, 0, 9_000_000)}, id="most-shares"),
        pytest.param(spec(main=wants("0", "0")), {"main": Asked()}, id="zero-is-nothing"),
        pytest.param(spec(main={"requests": {MEMORY: "1Gi"}}), {"main": Asked()}, id="a-request-is-no-limit"),
        pytest.param(spec(main={"limits": {CPU: "500"}}), {"main": Asked(0, 0, 500)}, id="a-cpu-limit-is-no-request"),
        pytest.param(spec(main=wants(None, "7Ei")), {"main": Asked()}, id="more-memory-than-kernels-count"),
        pytest.param(spec(main={}, side={"requests": None}), {"main": Asked(), "side": Asked()}, id="empty"),
        pytest.param({EXTENDED_SPEC: '{"other": 1}'}, {}, id="other-keys"),
        pytest.param(
            ours(main={"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}),
            {"main": Asked(1536, 2 * GIB, 2000)},
            id="criproxys-own",
        ),
        pytest.param(ours(main={"requests": {"cpu": 2}}), {"main": Asked(2048)}, id="criproxys-own-bare-number"),
        pytest.param(ours(main={"requests": {"cpu": "4.03"}}), {"main": Asked(4126)}, id="criproxys-own-fraction"),
        pytest.param(ours(main=wants("2000", "4Gi")), {"main": Asked()}, id="names-of-the-other"),
        pytest.param(
            {**spec(main=wants("1000"), side=wants("500")), **ours(main={"requests": {"cpu": "2"}})},
            {"main": Asked(2048)},
            id="criproxys-own-and-not-koordinators",
        ),
        pytest.param({**BOTH, KEEP_REQUESTS: "true"}, {}, id="keeps-its-requests"),
        pytest.param({**BOTH, KEEP_REQUESTS: "false"}, {"main": Asked(2048, 4 * GIB, 2000)}, id="keeps-none"),
        pytest.param(
            {**spec(main=wants("256000")), KEEP_REQUESTS: "true", **ours(main={"requests": {"cpu": "256"}})},
            {},
            id="keeps-its-requests-and-claims-more",
        ),
        pytest.param(
            {
                RESOURCES: json.dumps(
                    {
                        "containers": {"main": {"requests": {"cpu": "1"}}},
                        "initContainers": {
                            "log": {"requests": {"cpu": "2"}, "restartPolicy": "Always"},
                            "fetch": {"limits": {"cpu": "3"}, "restartPolicy": None},
                        },
                    }
                )
            },
            {
                "log": Asked(2048, kind=ContainerKind.SIDECAR),
                "fetch": Asked(0, 0, 3000, ContainerKind.INIT),
                "main": Asked(1024),
            },
            id="init-containers",
        ),
    ],
)
def test_annotation_says_what_each_container_asks_for(annotations: dict[str, str], asked: dict[str, Asked]) -> None:
    assert asked_by(annotations) == asked


NONSENSE = [
    pytest.param("", id="empty"),
    pytest.param("test", id="no-json"),
    pytest.param("[]", id="a-list"),
    pytest.param('{"containers": []}', id="containers-are-a-list"),
    pytest.param('{"containers": {"main": 1}}', id="container-is-a-number"),
    pytest.param(spec(main=wants("-5"))[EXTENDED_SPEC], id="negative"),
    pytest.param(spec(main=wants("two"))[EXTENDED_SPEC], id="word"),
    pytest.param(spec(main=wants(None, "1e400"))[EXTENDED_SPEC], id="more-than-any-node"),
    pytest.param(spec(main=wants(1e300))[EXTENDED_SPEC], id="large-number"),
    pytest.param(spec(main=wants(["1"]))[EXTENDED_SPEC], id="list"),
    pytest.param(spec(main=wants("2000"), side=wants("x"))[EXTENDED_SPEC], id="one-of-two"),
    pytest.param(json.dumps({"containers": {"main": {"limits": {CPU: "9e18"}}}}), id="more-cpus-than-any-node"),
    pytest.param("[" * 60_000, id="deep"),
    pytest.param('{"containers": {"' + "x" * 70_000 + '": {}}}', id="long"),
    pytest.param("\udcff", id="no-utf-8"),
    pytest.param(spec(**{f"c{n}": {} for n in range(MOST_CONTAINERS + 1)})[EXTENDED_SPEC], id="containers"),
    pytest.param('{"containers":{"c":' + '{"a":' * 600 + "{}" + "}" * 602, id="tables"),
    pytest.param('{"containers": {"main": {"requests": {"' + CPU + '": NaN}}}}', id="nan"),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=EXTENDED_SPEC):
        asked_by({EXTENDED_SPEC: text})


def test_nonsense_in_either_annotation_leaves_out_both() -> None:
    with pytest.raises(ValueError, match=RESOURCES):
        asked_by({**BOTH, RESOURCES: "{"})


@pytest.mark.parametrize("annotation", [RESOURCES, EXTENDED_SPEC])
@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_endless_amount_is_refused_and_costs_next_to_nothing(annotation: str, kind: str) -> None:
    name = "cpu" if annotation == RESOURCES else CPU
    text = json.dumps({"containers": {"main": {kind: {name: "1" * (LONGEST - 100) + "x"}}}})

    assert_cheap(lambda: asked_by({annotation: text}))
    with pytest.raises(ValueError, match=f"{annotation}: '1+' and so on has"):
        asked_by({annotation: text})


@given(
    st.sampled_from([EXTENDED_SPEC, RESOURCES]),
    st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")),
)
def test_any_text_is_nonsense_or_an_amount_that_a_runtime_takes(annotation: str, text: str) -> None:
    try:
        found = asked_by({annotation: text})
    except ValueError:
        return
    assert all(0 <= one.cpu_shares <= 262144 and 0 <= one.memory_bytes < 1 << 63 for one in found.values())


@pytest.mark.parametrize(
    ("containers", "pod"),
    [
        pytest.param({}, Asked(), id="nothing"),
        pytest.param({"a": Asked(2048, GIB), "b": Asked(1024, GIB)}, Asked(3072, 2 * GIB), id="sums"),
        pytest.param({"a": Asked(2048, GIB), "b": Asked()}, Asked(2050, 0), id="one-has-no-limit"),
        pytest.param({"a": Asked(2, 0, 500), "b": Asked(2, 0, 700)}, Asked(4, 0, 1200), id="cpu-limits"),
        pytest.param({"a": Asked(2, 0, 500), "b": Asked(2)}, Asked(4), id="one-has-no-cpu-limit"),
        pytest.param({"a": Asked(262144, 1), "b": Asked(262144, 1)}, Asked(262144, 2), id="most"),
    ],
)
def test_pod_asks_for_the_sum(containers: dict[str, Asked], pod: Asked) -> None:
    assert of_pod(containers) == pod


MAIN, INIT, SIDECAR = ContainerKind


@pytest.mark.parametrize(
    ("containers", "whole", "later"),
    [
        pytest.param(
            [(8192, 64, 8000, INIT), (1024, 64, 1000, MAIN)], (8192, 64, 8000), (1024, 64, 1000), id="large-init"
        ),
        pytest.param(
            [(100, 1, 1, INIT), (90, 2, 2, INIT), (60, 3, 3, MAIN), (50, 4, 4, MAIN)],
            (110, 7, 7),
            (110, 7, 7),
            id="small-inits",
        ),
        pytest.param([(100, 0, 0, INIT), (60, 3, 3, MAIN)], (100, 0, 0), (60, 3, 3), id="init-without-limits"),
        pytest.param([(50, 5, 5, SIDECAR), (60, 3, 3, MAIN)], (110, 8, 8), (110, 8, 8), id="sidecar"),
        pytest.param(
            [(50, 5, 5, SIDECAR), (100, 9, 9, INIT), (60, 3, 3, MAIN)], (150, 14, 14), (110, 8, 8), id="init-beside-it"
        ),
        pytest.param(
            [(100, 9, 9, INIT), (50, 5, 5, SIDECAR), (60, 3, 3, MAIN)], (110, 9, 9), (110, 8, 8), id="init-before-it"
        ),
        pytest.param([(100, 0, 0, MAIN), (60, 3, 3, MAIN)], (160, 0, 0), (160, 0, 0), id="one-without-limits"),
    ],
)  # fmt: skip
def test_pod_asks_for_the_most_that_a_moment_of_its_life_asks_for(
    containers: list[tuple[int, int, int, ContainerKind]], whole: tuple[int, int, int], later: tuple[int, int, int]
) -> None:
    asked = {str(number): Asked(*one) for number, one in enumerate(containers)}

    assert of_pod(asked) == Asked(*whole)
    assert once_initialized(asked) == Asked(*later)
