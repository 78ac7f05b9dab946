"""Whom an operator means, and that the parts go by it before the answer."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.worker import StuckError
from criproxy.daemon import hold_offs
from criproxy.daemon.hold_offs import OperatorsHoldOffs
from criproxy.model import PodRef, Sandbox
from criproxy.pods.hold_offs import HoldOffs
from tests.fakes.clock import FakeClock

PLACED = (PodRef("u1", "batch", "job"), PodRef("u2", "other", "job"), PodRef("u3", "batch", "x\x1b"))
OUTSIDE = PodRef("u4", "batch", "stray")


class Inline:
    async def run(self, what, job):
        return job()


class Bench:
    def __init__(self, tmp_path: Path) -> None:
        self.did: list[str] = []
        self.fails: Exception | None = None
        self.offs = HoldOffs(tmp_path / "f", Inline(), FakeClock(), structlog.get_logger())  # type: ignore[arg-type]
        self.operators = OperatorsHoldOffs(
            self.offs,
            SimpleNamespace(follow_operator=lambda: self.did.append(f"configured {len(self.offs.in_force())}")),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            SimpleNamespace(placed=tuple(Sandbox(f"s-{pod.uid}", pod, "/offline/p") for pod in PLACED)),  # type: ignore[arg-type]
            SimpleNamespace(pods=lambda: {"s": OUTSIDE}),  # type: ignore[arg-type]
        )

    async def settle(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.did.append("written")

    def hold(self, of: str) -> str:
        return asyncio.run(self.operators.hold(of, 60.0, "x"))

    def release(self, of: str) -> str:
        return asyncio.run(self.operators.release(of))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_box_is_held_off_once_what_was_asked_for_before_is_written(bench: Bench) -> None:
    assert "the box's limits stay, and no new offline pod is let in" in bench.hold("box")
    assert bench.did == ["configured 1", "written"]
    assert "no longer held off box" in bench.release("box")
    assert bench.did[-1] == "configured 0"


@pytest.mark.parametrize(
    "error", [StuckError("cannot write"), CgroupError("it hangs"), TimeoutError()], ids=["stuck", "cgroup", "slow"]
)
def test_hold_off_that_is_in_force_says_so_though_the_kernel_does_not_answer(bench: Bench, error: Exception) -> None:
    bench.fails = error
    said = bench.hold("box")
    assert said.startswith("criproxy is held off box for 60 s: ")
    assert "may still be written" in said
    assert bench.did == ["configured 1"]


def test_hold_off_waits_no_longer_for_the_kernel_than_who_asks_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(hold_offs, "_SETTLES_S", 0.01)
    bench.settle = settle  # type: ignore[method-assign]
    assert "may still be written" in bench.hold("box")


@pytest.mark.parametrize(("of", "uid"), [("batch/job", "u1"), ("u2", "u2"), ("stray", "u4"), ("batch/stray", "u4")])
def test_pod_is_meant_by_its_names_or_its_uid_and_released_by_any_of_them(bench: Bench, of: str, uid: str) -> None:
    assert "criproxy does not stop it" in bench.hold(of)
    assert [one.uid for one in bench.offs.in_force()] == [uid]
    bench.release(uid)
    assert bench.offs.in_force() == ()


@pytest.mark.parametrize("of", ["", "none", "batch/none", "batch"])
def test_who_is_no_offline_pod_of_the_node_is_refused(bench: Bench, of: str) -> None:
    with pytest.raises(ValueError, match="no offline pod of this node"):
        bench.hold(of)
    with pytest.raises(ValueError, match="not held off"):
        bench.release(of)
    assert bench.did == []


def test_name_of_several_pods_is_refused_with_their_uids(bench: Bench) -> None:
    with pytest.raises(ValueError, match="by its uid: u1, u2"):
        bench.hold("job")
    bench.hold("u1")
    bench.hold("u2")
    with pytest.raises(ValueError, match="by its uid: u1, u2"):
        bench.release("job")
    bench.release("other/job")
    assert [one.uid for one in bench.offs.in_force()] == ["u1"]


def test_empty_name_releases_nothing_though_the_box_has_no_uid(bench: Bench) -> None:
    bench.hold("box")
    with pytest.raises(ValueError, match="not held off"):
        bench.release("")
