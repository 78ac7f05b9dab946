"""The event loop and the rigs of the engines' tests."""

import asyncio
import gc
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc._cython import cygrpc

from criproxy.fronts.event_loop import EventLoop
from tests.fronts.rig import WAYS, Rig, build_rig


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all, as the daemon's is.

    What was imported by then is left out of `quiet_log`'s collections: most of their time.
    """
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, EventLoop)
        loop.use_timerfd()
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the coroutine tests that ask for `runner` on its loop."""
    if "runner" not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a client or the runtime does, it is no reason for gRPC or asyncio to complain.

    But for one race of gRPC's own: its server sends a call's end at the very moment at which the client leaves, and its
    core refuses that.
    """
    yield
    gc.collect()  # a task's lost exception is told when the task goes
    complaints = [
        record.getMessage()
        for when in ("setup", "call", "teardown")
        for record in caplog.get_records(when)
        if record.levelno >= logging.WARNING and record.name.startswith(("grpc", "asyncio"))
        if not (record.exc_info and isinstance(record.exc_info[1], cygrpc.ExecuteBatchError))
    ]
    assert complaints == []


def _make_rig(engine: str, runner: asyncio.Runner, tmp_path: Path, *, runtime_runs: bool = True) -> Iterator[Rig]:
    context = build_rig(engine, tmp_path, runtime_runs)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.fixture(params=WAYS)
def rig(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path, quiet_log: None) -> Iterator[Rig]:
    """What must be the same directly and through each engine."""
    yield from _make_rig(request.param, runner, tmp_path)


@pytest.fixture(params=WAYS)
def bare(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path, quiet_log: None) -> Iterator[Rig]:
    """As `rig`, but the runtime is the test's own to put at `rig.runtime.path`, or to start."""
    yield from _make_rig(request.param, runner, tmp_path, runtime_runs=False)


@pytest.fixture(params=["grpc", "relay"])
def proxied(request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path: Path, quiet_log: None) -> Iterator[Rig]:
    """What only an engine does."""
    yield from _make_rig(request.param, runner, tmp_path)
