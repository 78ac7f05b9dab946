"""Attach that fails, is killed or interrupted: the node is as it was."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from criproxy.commands.attach.command import run
from criproxy.commands.attach.edits import Edit, NodeError
from criproxy.commands.attach.host import Host, Machine, TimedOutError
from criproxy.kubelet.flags import ENDPOINT_FLAG
from tests.commands.attach.attach_bench import KUBELET_CONFIG, ON_PROXY, ON_RUNTIME, Bench, shell_node
from tests.fakes.node import CONFIG, KUBEADM_DROPIN, LISTEN, UNIT, FakeNode


def _dies(node: FakeNode) -> None:
    node.dies = lambda endpoint: endpoint == ON_PROXY


def _stays_ill(node: FakeNode) -> None:
    node.healthy = lambda endpoint: endpoint != ON_PROXY


def _says_nothing(node: FakeNode) -> None:
    node.silent = True


def _later_dropin(node: FakeNode) -> None:
    command = KUBEADM_DROPIN.rpartition("ExecStart=\n")[2]
    node.write(f"/etc/systemd/system/{UNIT}.d/zzz.conf", f"[Service]\nExecStart=\n{command}")


def _flaps(node: FakeNode) -> None:
    node.flaps = lambda endpoint: endpoint == ON_PROXY


def _never_gets_the_flag(node: FakeNode) -> None:
    node.drops, node.others_call = LISTEN, True


FAILURES = {
    "kubelet-flaps": (_flaps, "kubelet has ended after its restart (active, running)"),
    "kubelet-never-gets-the-flag": (_never_gets_the_flag, f"was started without {ENDPOINT_FLAG}={ON_PROXY}"),
    "kubelet-dies": (
        _dies,
        "kubelet has ended after its restart (activating, auto-restart); the end of its log:\nkubelet says why",
    ),
    "kubelet-stays-ill": (_stays_ill, "kubelet was not well within 120 s: http://127.0.0.1:10248/healthz answers 500"),
    "no-call-comes": (_says_nothing, "criproxy has seen no call of kubelet's"),
    "later-drop-in": (_later_dropin, "zzz.conf sets another command after /etc/systemd/system/kubelet."),
}


@pytest.mark.parametrize("case", FAILURES)
def test_attach_that_fails_puts_the_bytes_and_kubelet_back(bench: Bench, case: str) -> None:
    prepare, told = FAILURES[case]
    prepare(bench.node)
    bench.node.kubeadm()
    before = bench.node.files()
    assert bench.attach() == 1
    assert told in bench.out
    assert bench.err == "criproxy attach: rolled back: kubelet is as it was\n"
    assert (bench.node.files(), bench.record()) == (before, None)
    assert (bench.node.active, bench.node.endpoint) == ("active", ON_RUNTIME)


def _fails_at(node: FakeNode, command: str) -> None:
    """Systemd refuses the next such command."""

    def refuse(asked: Sequence[str]) -> None:
        if asked[1] == command:
            node.before_run = lambda _command: None
            raise NodeError(f"systemctl {command}: refused")

    node.before_run = refuse


def _without_kubelet(bench: Bench, active: str) -> None:
    """A node whose kubelet does not run, and, where that is `activating`, ends at each start."""
    bench.node.active = active
    bench.node.dies = lambda _endpoint: active == "activating"
    bench.node.kubeadm()


RESTARTS = {"inactive": [], "failed": [], "activating": ["restart kubelet.service"]}
"""What a rollback does to a kubelet that did not run; one that systemd starts again and again reads its files anew."""


@pytest.mark.parametrize("active", RESTARTS)
def test_attach_that_fails_does_not_start_a_kubelet_that_did_not_run(bench: Bench, active: str) -> None:
    _without_kubelet(bench, active)
    before = bench.node.files()
    _fails_at(bench.node, "daemon-reload")
    assert bench.attach() == 1
    assert bench.err == "criproxy attach: rolled back: kubelet is as it was\n"
    assert (bench.node.files(), bench.record(), bench.node.active) == (before, None, active)
    assert [command for command in bench.node.ran if command != "daemon-reload"] == RESTARTS[active]


@pytest.mark.parametrize("active", RESTARTS)
def test_attach_killed_is_undone_without_starting_a_kubelet_that_did_not_run(
    bench: Bench, active: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_kubelet(bench, active)
    before = bench.node.files()
    with monkeypatch.context() as dead, pytest.raises(KilledError):

        def kill(command: Sequence[str]) -> None:
            if command[1] == "daemon-reload":
                dead.setattr(Host, "apply", Life(0).apply)
                raise KilledError

        bench.node.before_run = kill
        bench.attach()
    bench.node.before_run = lambda _command: None
    assert (bench.record() or {})["phase"] == "changing"
    assert bench.detach() == 0, bench.err
    assert (bench.node.files(), bench.record(), bench.node.active) == (before, None, active)
    assert [command for command in bench.node.ran if command != "daemon-reload"] == RESTARTS[active]


@pytest.mark.parametrize("active", RESTARTS)
def test_detach_that_fails_does_not_start_a_kubelet_that_did_not_run(bench: Bench, active: str) -> None:
    _without_kubelet(bench, active)
    assert bench.attach() == 0, bench.err
    attached = bench.node.files()
    _fails_at(bench.node, "daemon-reload")
    assert bench.detach() == 1
    assert bench.err == "criproxy detach: rolled back: kubelet is still attached\n"
    assert (bench.node.files(), bench.node.active) == (attached, active)
    assert [command for command in bench.node.ran if command != "daemon-reload"] == RESTARTS[active]


def test_rollback_restarts_a_kubelet_that_somebody_started_meanwhile_on_our_files(bench: Bench) -> None:
    _without_kubelet(bench, "inactive")

    def start_then_fail(command: Sequence[str]) -> None:
        if command[1] == "daemon-reload":
            bench.node.before_run = lambda _command: None
            bench.node.reload()
            bench.node.start()
            raise NodeError("systemctl daemon-reload: refused")

    bench.node.before_run = start_then_fail
    assert bench.attach() == 1
    assert (bench.node.active, bench.node.endpoint) == ("active", ON_RUNTIME)


class KilledError(BaseException):
    """kill -9: nothing of the process runs after it."""


class Life:
    """A process that is killed at its n-th command: from then on it runs and writes nothing, clean-up or not."""

    def __init__(self, commands: int) -> None:
        self._left = commands
        self._apply = Host.apply

    def spend(self, _command: Sequence[str]) -> None:
        self._left -= 1
        if self._left <= 0:
            raise KilledError

    @property
    def apply(self) -> Callable[[Host, Edit], None]:
        def apply(node: Host, edit: Edit) -> None:
            if self._left <= 0:
                raise KilledError
            self._apply(node, edit)

        return apply


def steps_of(bench: Bench) -> int:
    """How many commands an attach runs."""
    count = 0

    def counted(_command: Sequence[str]) -> None:
        nonlocal count
        count += 1

    bench.node.before_run = counted
    bench.attach()
    bench.node.before_run = lambda _command: None
    bench.detach()
    return count


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_attach_killed_at_any_step_is_undone_by_the_next_run(
    bench: Bench, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node.kubeadm()
    before = bench.node.files()
    for at in range(1, steps_of(bench) + 1):
        life = Life(at)
        bench.node.before_run = life.spend
        with monkeypatch.context() as dead, pytest.raises(KilledError):
            dead.setattr(Host, "apply", life.apply)
            bench.attach()
        bench.node.before_run = lambda _command: None
        assert (bench.attach() if verb == "attach" else bench.detach()) == 0, bench.err
        wanted = ON_PROXY if verb == "attach" else ON_RUNTIME
        assert (bench.record() or {}).get("phase") == ("attached" if verb == "attach" else None)
        assert bench.node.endpoint == wanted, at
        assert bench.detach() == 0, bench.err
        assert (bench.node.files(), bench.record(), bench.node.endpoint) == (before, None, ON_RUNTIME), at


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["int", "term", "hup"])
@pytest.mark.parametrize("at", ["systemctl show", "systemctl daemon-reload", "systemctl restart"])
def test_attach_interrupted_at_a_step_is_undone_at_once(bench: Bench, number: signal.Signals, at: str) -> None:
    bench.node.kubeadm()
    before, armed = bench.node.files(), [True]

    def interrupt(command: Sequence[str]) -> None:
        if " ".join(command).startswith(at) and armed:
            armed.clear()
            os.kill(os.getpid(), number)

    bench.node.before_run = interrupt
    handler = signal.getsignal(number)
    assert bench.attach() == 1
    assert f"ended by {number.name}" in bench.out + bench.err
    assert (bench.node.files(), bench.record(), bench.node.endpoint) == (before, None, ON_RUNTIME)
    assert signal.getsignal(number) == handler


def test_attach_that_cannot_save_its_record_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.node.kubeadm()
    before = bench.node.files()

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("criproxy.commands.attach.host._replace", full)
    assert bench.attach() == 1
    assert "attach.json: No space left on device" in bench.err
    assert bench.node.files() == before


def test_what_somebody_else_wrote_meanwhile_is_not_rolled_back(bench: Bench) -> None:
    shell_node(bench.node, f"--config={KUBELET_CONFIG}")
    bench.node.dies = lambda endpoint: endpoint == ON_PROXY
    mine = f"{CONFIG}maxPods: 30\n"

    def write(command: Sequence[str]) -> None:
        if command[0] == "journalctl":
            bench.node.write(KUBELET_CONFIG, mine)

    bench.node.before_run = write
    assert bench.attach() == 1
    assert f"note: {KUBELET_CONFIG} was changed by somebody else meanwhile, and is left as it is" in bench.out
    assert (bench.node.text(KUBELET_CONFIG), bench.node.endpoint) == (mine, ON_RUNTIME)


def test_attach_while_another_is_at_work_fails(bench: Bench) -> None:
    bench.node.kubeadm()
    seen: list[int] = []

    def second(command: Sequence[str]) -> None:
        if command[1] == "restart":
            seen.append(run("detach", bench.config, False, FakeNode(bench.node.root), bench.node.root))

    bench.node.before_run = second
    assert bench.attach() == 0
    assert seen == [1]
    assert "runs: wait for it" in bench.err


def test_kubelet_is_restarted_by_the_rollback_also_when_it_cannot_be_looked_at_before(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.node.dies = lambda endpoint: endpoint == ON_PROXY
    seen = {"reloads": 0, "shows": 0}

    def fail_once(command: Sequence[str]) -> None:
        seen["reloads"] += command[1] == "daemon-reload"
        seen["shows"] += seen["reloads"] == 2 and command[1] == "show"
        if command[1] == "show" and seen["shows"] == 2:
            seen["shows"] += 1
            raise NodeError("systemctl show has not ended within 30 s")

    bench.node.before_run = fail_once
    assert bench.attach() == 1
    assert (bench.node.active, bench.node.endpoint) == ("active", ON_RUNTIME)
    assert "rolled back: kubelet is as it was" in bench.err


# --- a systemd that is slow to read its units -------------------------------------------------------------------------


@pytest.mark.parametrize("reload_s", [40.0, 200.0], ids=["slow", "slower-than-its-client-waits"])
def test_attach_and_detach_wait_for_a_slow_reload(bench: Bench, reload_s: float) -> None:
    bench.node.kubeadm()
    grouped, before = bench.node.container("a", "1"), bench.node.files()
    bench.node.reload_s = reload_s
    assert bench.attach() == 0, bench.err
    assert (bench.node.active, bench.node.endpoint) == ("active", ON_PROXY)
    assert bench.detach() == 0, bench.err
    assert (bench.node.files(), bench.record()) == (before, None)
    assert (bench.node.active, bench.node.endpoint) == ("active", ON_RUNTIME)
    assert (bench.node.text(grouped) or "").strip() == "1"


def test_attach_that_fails_is_rolled_back_by_a_slow_reload(bench: Bench) -> None:
    bench.node.kubeadm()
    before = bench.node.files()
    bench.node.reload_s = 40.0
    _dies(bench.node)
    assert bench.attach() == 1
    assert bench.err == "criproxy attach: rolled back: kubelet is as it was\n"
    assert (bench.node.files(), bench.record(), bench.node.endpoint) == (before, None, ON_RUNTIME)


def test_reload_that_a_starved_systemd_never_heard_of_is_asked_for_again(bench: Bench) -> None:
    bench.node.kubeadm()
    assert bench.attach() == 0, bench.err
    bench.node.unheard = 1
    assert bench.detach() == 0, bench.err
    assert (bench.record(), bench.node.endpoint) == (None, ON_RUNTIME)


def test_command_that_does_not_end_has_timed_out() -> None:
    with pytest.raises(TimedOutError, match="sleep 60 has not ended within 0 s"):
        Machine().run(("sleep", "60"), 0.1)


@pytest.mark.parametrize("active", ["active", "inactive"])
def test_detach_never_goes_back_because_a_reload_takes_long(bench: Bench, active: str) -> None:
    _without_kubelet(bench, active)
    before = bench.node.files()
    assert bench.attach() == 0, bench.err
    bench.node.reload_s = 1000.0
    assert bench.detach() == 1
    assert bench.err == (
        "criproxy detach: kubelet's files no longer name criproxy, but systemctl daemon-reload has not ended within "
        "180 s: run `criproxy detach` again when the node has less to do\n"
    )
    assert bench.node.files() == before
    bench.node.sleep(1000.0)
    bench.node.reload_s = 0.0
    assert bench.detach() == 0, bench.err
    assert (bench.node.files(), bench.record(), bench.node.active) == (before, None, active)
    assert bench.node.endpoint == (ON_RUNTIME if active == "active" else "")
