"""The daemon as its operator meets it: the switch, reloads, bad configs, restarts, drift, before a real containerd."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab import cgroups
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, python_path, static, toml_file
from integration.lab.naming import driver, placement, spelled, told
from integration.lab.node import CLASS, FOREVER, Node
from integration.lab.process import Process, is_running, wait_until
from integration.lab.usage import Cgroup

WAIT_S = 60
PLACEMENT = "colocation.criproxy.io/placement"
MIB = 1 << 20
QUOTA_US, MEMORY_BYTES = 50_000, 256 * MIB
"""What the kernel holds under `STATIC`, per 100 ms."""

STATIC = static(0.5, MEMORY_BYTES, control={"interval_s": 0.2})


def config(tables: Config = STATIC, **colocation: Any) -> Config:
    """`STATIC` limits (or other tables), and the switch: on, unless `colocation` says otherwise."""
    return {**tables, "colocation": {"enabled": True, **colocation}}


# --- the kernel's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """The box's files. A limit that is lifted reads as None. `log` is criproxy's."""

    box: Cgroup
    log: Path

    @property
    def quota(self) -> Path:
        return self.box.either("cpu.cfs_quota_us", "cpu.max")

    @property
    def memory(self) -> Path:
        return self.box.either("memory.limit_in_bytes", "memory.max")

    @property
    def idle(self) -> Path:
        return self.box.either("cpu.idle", "cpu.idle")

    def now(self) -> tuple[int | None, int | None]:
        quota, memory = self.quota.read_text().split()[0], self.memory.read_text().strip()
        return (
            None if quota in ("-1", "max") else int(quota),
            None if memory == "max" or int(memory) > 1 << 60 else int(memory),
        )

    def has_lowest_priority(self) -> bool:
        if self.idle.exists():
            return self.idle.read_text() == "1\n"
        return self.box.either("cpu.shares", "cpu.weight").read_text() in ("2\n", "1\n")

    def wait(self, quota_us: int | None, memory_bytes: int | None) -> None:
        awaited = (quota_us, memory_bytes)
        wait_until(lambda: self.now() == awaited, WAIT_S, f"the limits {awaited}", self.log)


# --- a node ----------------------------------------------------------------------------------------------------------


class Daemon(Node):
    """`Daemon`, whose criproxy is not started yet."""

    def start(self, tables: Config | None = None, **options: Any) -> None:
        if tables is not None:
            self.proxy.configure(tables)
        self.proxy.start(**options)
        wait_until(self.client.is_ready, WAIT_S, "the client's connection")

    def switch(self, tables: Config | str, *, sighup: bool = False) -> None:
        """Change the file, and wait until it was taken up or refused."""
        before = len(self.loads())
        self.proxy.configure(tables)
        if sighup:
            self.proxy.reload()
        wait_until(lambda: len(self.loads()) > before, WAIT_S, "the config's reload", self.proxy.log)

    def loads(self) -> list[dict[str, Any]]:
        return self.proxy.events("config_taken", "config_refused")

    @property
    def limits(self) -> Limits:
        return Limits(self.box, self.proxy.log)

    def add(self, pod: Pod, name: str = "main") -> Container:
        return self.client.run_container(pod, name, FOREVER)

    def wait_ticks(self, count: int) -> None:
        def ticks() -> float:
            """How many have ended."""
            return self.proxy.metric("criproxy_tick_duration_seconds_count")

        start = ticks()
        wait_until(lambda: ticks() >= start + count, WAIT_S, f"{count} ticks", self.proxy.log)

    def runtime_annotations(self) -> dict[str, str]:
        """The placement annotation of every sandbox that has one, by pod uid, as the runtime tells."""
        listed = self.direct.list_pods()
        return {s.metadata.uid: s.annotations[PLACEMENT] for s in listed if PLACEMENT in s.annotations}


@pytest.fixture
def node(lab: Path, containerd: Containerd, client: CriClient) -> Iterator[Daemon]:
    (socket := lab / "runtime.sock").symlink_to(containerd.socket)
    with Daemon.before(containerd, config(), directory=lab, socket=socket, starts=False) as node:
        yield node


# --- the switch ------------------------------------------------------------------------------------------------------


def test_switch_off_with_release_lifts_the_limits_and_leaves_the_pods_where_they_are(node: Daemon) -> None:
    node.start()
    offline, online = node.run_pod("offline"), node.run_pod("online")
    main, web = node.add(offline), node.add(online)
    assert [node.is_in_box(what) for what in (offline, main, online, web)] == [True, True, False, False]
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)
    assert node.limits.has_lowest_priority()
    pids = [node.client.pid(what) for what in (offline, main, online, web)]

    node.switch(config(enabled=False))
    node.limits.wait(None, None)
    node.wait_ticks(3)
    assert node.limits.now() == (None, None)
    assert node.limits.has_lowest_priority()
    assert [node.client.pid(what) for what in (offline, main, online, web)] == pids
    assert [node.is_in_box(what) for what in (offline, main, online, web)] == [True, True, False, False]
    assert node.is_in_box(node.add(offline, "late")), "a new container of a placed sandbox was to follow it"
    ordinary = node.run_pod("offline")
    assert not node.is_in_box(ordinary), "while colocation is off, an offline pod starts as an ordinary one"
    status = node.proxy.status()
    assert (status["colocation"], status["box"]["cpu"]["limit_cores"]) == ("off", "unlimited")

    node.switch(config())
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    assert node.is_in_box(node.run_pod("offline"))
    assert not node.is_in_box(node.add(ordinary)), "a pod that started as an ordinary one was to stay so"
    assert node.is_in_box(node.add(offline, "later"))
    assert [node.client.pid(what) for what in (offline, main, online, web)] == pids


def test_switch_off_with_evict_stops_the_offline_pods_alone(node: Daemon) -> None:
    node.start(config(on_disable="evict"))
    offline, online = [node.run_pod("offline") for _ in range(2)], node.run_pod("online")
    mains, web = [node.add(pod) for pod in offline], node.add(online)
    pids = [*map(node.client.pid, offline), *map(node.client.pid, mains)]
    kept = [node.client.pid(what) for what in (online, web)]

    node.switch(config(enabled=False, on_disable="evict"))
    wait_until(lambda: not any(map(is_running, pids)), WAIT_S, "the offline pods to end", node.proxy.log)
    assert [node.client.pid(what) for what in (online, web)] == kept
    assert all(map(is_running, kept))

    def stopped() -> set[str]:
        ended = cri.PodSandboxState.SANDBOX_NOTREADY
        return {sandbox.id for sandbox in node.client.list_pods() if sandbox.state == ended}

    wait_until(lambda: stopped() == {pod.id for pod in offline}, WAIT_S, "the runtime to see it")
    evicted = [event["pod_uid"] for event in node.proxy.events("stop")]
    assert sorted(evicted) == sorted(pod.config.metadata.uid for pod in offline)
    assert not node.is_in_box(node.run_pod("offline")), "the pod that comes in place of an evicted one is ordinary"


def test_switch_toggled_while_pods_start_never_splits_a_pod(node: Daemon) -> None:
    node.start()
    with ThreadPoolExecutor(2) as kubelet:
        starting = [kubelet.submit(lambda: node.add(node.run_pod("offline"))) for _ in range(16)]
        while not all(start.done() for start in starting):
            node.switch(config(enabled=False), sighup=True)
            node.switch(config(), sighup=True)
    wait_until(lambda: node.proxy.status()["colocation"] == "on", WAIT_S, "the last reload", node.proxy.log)
    boxed = set()
    for start in starting:
        main = start.result()
        placed = node.is_in_box(main.pod)
        assert [node.is_in_box(what) for what in (main, node.add(main.pod, "late"))] == [placed] * 2
        boxed |= {main.pod.config.metadata.uid} if placed else set()
    assert {pod["uid"] for pod in node.proxy.status()["pods"]} == boxed == set(node.runtime_annotations())
    if boxed:
        node.limits.wait(QUOTA_US, MEMORY_BYTES)


def test_start_while_off_lifts_the_limits_that_are_left(node: Daemon) -> None:
    node.start()
    offline = node.run_pod("offline")
    node.proxy.kill()
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)
    node.start(config(enabled=False))
    node.limits.wait(None, None)
    assert node.is_in_box(offline)
    assert node.is_in_box(node.add(offline))


# --- reload ----------------------------------------------------------------------------------------------------------


def test_changed_file_is_taken_up_and_sighup_reads_an_unchanged_one_again(node: Daemon) -> None:
    node.start()
    pod = node.run_pod("offline")
    tables = {**STATIC, "cpu": {"static_cores": 0.25}}
    node.switch(config(tables))
    node.limits.wait(25_000, MEMORY_BYTES)
    before = len(node.loads())
    node.proxy.reload()
    wait_until(lambda: len(node.loads()) > before, WAIT_S, "the reload", node.proxy.log)
    assert [event["event"] for event in node.loads()[before:]] == ["config_taken"]
    assert node.is_in_box(pod)


def test_bad_file_keeps_the_old_config_and_all_its_errors_are_told(node: Daemon) -> None:
    node.start()
    node.run_pod("offline")
    bad = {
        **STATIC,
        "colocation": {"enabled": False, "on_disable": "evict", "presets": ["nobody"]},
        "cpu": {"static_cores": -1, "watermark": 0.5},
        "control": {"interval_s": "soon"},
    }
    keys = ("colocation.presets[0]", "cpu.static_cores", "cpu.watermark", "control.interval_s")
    node.switch(bad)
    status = node.proxy.status()
    assert status["colocation"] == "on"
    refused = node.loads()[-1]
    assert refused["event"] == "config_refused"
    for errors in (status["config"]["errors"], refused["errors"]):
        assert [[error for error in errors if f": {key} = " in error] != [] for key in keys] == [True] * len(keys)
    node.wait_ticks(3)
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)
    assert node.is_in_box(node.run_pod("offline"))

    for wrong in ("[colocation\n", f"{'.'.join(['a'] * 500)} = 1\n"):
        node.switch(wrong)
        assert len(node.proxy.status()["config"]["errors"]) == 1
    node.switch(config({**STATIC, "cpu": {"static_cores": 0.25}}))
    node.limits.wait(25_000, MEMORY_BYTES)
    assert node.proxy.status()["config"]["errors"] == []


def test_keys_that_need_a_restart_are_told_and_wait_for_it(node: Daemon) -> None:
    node.start()
    node.switch(
        {
            **config(),
            "proxy": {"listen": str(node.proxy.directory / "other.sock")},
            "control": {**STATIC["control"], "checkpoint": str(node.proxy.directory / "other.checkpoint")},
            "observe": {"address": "127.0.0.1:1"},
        }
    )
    assert node.proxy.status()["config"]["needs_restart"] == ["proxy.listen", "control.checkpoint", "observe.address"]
    wait_until(node.client.is_ready, WAIT_S, "an answer at the first socket", node.proxy.log)
    assert not (node.proxy.directory / "other.sock").exists()
    node.switch(config())
    assert node.proxy.status()["config"]["needs_restart"] == []


# --- a bad config at the start ---------------------------------------------------------------------------------------


def several_errors(text: str) -> str:
    text = text.replace("enabled = true", 'enabled = false\non_disable = "evict"\npresets = 7')
    return text.replace("interval_s = 0.2", 'interval_s = "soon"')


def salvaged_switch(text: str) -> str:
    """The switch itself is sound, and on."""
    return text.replace("interval_s = 0.2", 'interval_s = "soon"')


def in_colocation(text: str, lines: str) -> str:
    """With these lines first in a last section [colocation]: what is before a line that is no TOML is salvaged."""
    head, rest = text.split("[colocation]\n")
    own, _, others = rest.partition("\n[")
    return f"{head}[{others}\n[colocation]\n{lines}\n{own}\n" if others else f"{head}[colocation]\n{lines}\n{own}"


def syntax_error(text: str) -> str:
    return in_colocation(text, 'on_disable = "evict"\n{oops')


def nested_too_deep(text: str) -> str:
    return in_colocation(text, f"{'.'.join(['a'] * 500)} = 1")


@pytest.mark.parametrize(
    ("spoil", "count"),
    [(several_errors, 2), (salvaged_switch, 1), (syntax_error, 1), (nested_too_deep, 1)],
    ids=["values", "salvaged-switch", "syntax", "nested-too-deep"],
)
def test_bad_config_at_the_start_makes_a_pass_through_that_a_corrected_file_ends(
    node: Daemon, spoil: Any, count: int
) -> None:
    node.start()
    offline = node.run_pod("offline")
    main = node.add(offline)
    node.proxy.stop()
    good = node.proxy.config_file.read_text()
    bad = spoil(good)
    assert bad != good
    node.proxy.configure(bad)
    node.limits.quota.write_text("30000")
    node.start()

    status = node.proxy.status()
    assert (status["colocation"], len(status["config"]["errors"])) == ("pass-through", count), status["config"][
        "errors"
    ]
    assert node.loads()[-1]["event"] == "config_refused"
    node.wait_ticks(2)
    quota_us, memory_bytes = node.limits.now()
    assert quota_us is not None, "a pass-through was to lift no limit"
    assert memory_bytes is not None
    assert (quota_us <= 30_000, memory_bytes <= MEMORY_BYTES) == (True, True), "a pass-through was to raise no limit"
    assert all(is_running(node.client.pid(what)) for what in (offline, main))
    assert node.is_in_box(node.add(offline, "late")), "a container was to follow its sandbox"
    ordinary = node.run_pod("offline")
    assert not node.is_in_box(ordinary)
    assert "stop" not in {event["event"] for event in node.proxy.events()}

    node.switch(good)
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    assert node.proxy.status()["colocation"] == "on"
    assert node.is_in_box(node.run_pod("offline"))
    assert not node.is_in_box(node.add(ordinary))


def test_large_limits_of_the_last_process_are_lowered_though_the_config_is_bad(node: Daemon) -> None:
    """Those of a night, say, that the day would find in force."""
    cores, memory_bytes = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    large = {**STATIC, "cpu": {"static_cores": cores}, "memory": {"static_bytes": memory_bytes}}
    node.start(config(large))
    node.run_pod("offline")
    wait_until(lambda: node.limits.now()[0] == cores * 100_000, WAIT_S, "the large limits", node.proxy.log)
    node.proxy.stop()
    node.proxy.configure(node.proxy.config_file.read_text() + "[oops\n")
    node.start()
    assert node.proxy.status()["colocation"] == "pass-through"

    def lowered() -> bool:
        quota_us, size = node.limits.now()
        return quota_us is not None and size is not None and quota_us < cores * 100_000 and size < memory_bytes

    wait_until(lowered, WAIT_S, "limits of what online leaves", node.proxy.log)


def test_missing_config_at_the_start_makes_a_pass_through_at_the_default_sockets(
    lab: Path, node: Daemon, containerd: Containerd
) -> None:
    run = lab / "run"  # /run in a mount namespace of its own, so that the defaults are nobody else's
    (run / "containerd").mkdir(parents=True)
    (run / "containerd" / "containerd.sock").hardlink_to(containerd.socket)
    script = """
    for bus in systemd dbus; do  # systemd is asked for slices, where it is there
      [ ! -d /run/$bus ] || { mkdir -p "$1/$bus"; mount --rbind /run/$bus "$1/$bus"; }
    done
    mount --rbind "$1" /run && exec "$2" -m criproxy run --config /run/criproxy.toml
    """
    command: list[str | Path] = ["unshare", "--mount", "--net", "sh", "-c", script, "sh", run, sys.executable]
    log = lab / "default.log"
    proxy = Process("criproxy", command, log, {"PYTHONPATH": python_path()})
    try:
        proxy.wait_until(lambda: "runtime_ready" in log.read_text(), WAIT_S, "the runtime")
        assert "there is no such file" in log.read_text()
        with CriClient(run / "criproxy" / "criproxy.sock") as through:
            default = replace(node, client=through)
            assert not default.is_in_box(default.run("offline"))
            let = {"refuse_host_namespaces": [], "refuse_host_paths": [], "writable_host_paths": ["/"]}
            (run / "criproxy.toml").write_text(toml_file({"colocation": {"enabled": True}, "hardening": let}))
            proxy.wait_until(lambda: "config_taken" in log.read_text(), WAIT_S, "the file")
            assert default.is_in_box(default.run("offline"))
    finally:
        proxy.stop()
    assert proxy.exit_status == 0


# --- a restart -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_placement_and_limits_survive_a_restart(node: Daemon, end: str) -> None:
    node.start()
    offline, online = node.run_pod("offline"), node.run_pod("online")
    node.add(offline)
    getattr(node.proxy, end)()
    node.limits.quota.write_text("70000")
    node.limits.memory.write_text(str(200 * MIB))
    node.start(config({**STATIC, "control": {"policy": "static", "interval_s": 60.0}}))  # no decision for a minute
    assert node.proxy.status()["box"]["path"] == placement(node.box.path)
    assert node.limits.now() == (70_000, 200 * MIB), "the kernel's limits were to hold until the first decision"
    assert node.is_in_box(node.add(offline, "late"))
    assert not node.is_in_box(node.add(online))
    assert [pod["uid"] for pod in node.proxy.status()["pods"]] == [offline.config.metadata.uid]


def test_forged_placement_moves_nothing_after_a_restart(node: Daemon) -> None:
    node.start()
    offline = node.run_pod("offline")
    genuine = placement(f"{node.box.path}/pod{offline.config.metadata.uid}")
    assert node.runtime_annotations() == {offline.config.metadata.uid: genuine}
    places = ["/", genuine, f"{node.root}/kubepods", f"{genuine}/..", "offline-podx.slice", "x" * 10_000]
    forgers = [node.run_pod("online", annotations={PLACEMENT: place}) for place in places]
    node.proxy.kill()
    node.start()
    assert [node.is_in_box(node.add(pod)) for pod in forgers] == [False] * len(places)
    assert [pod["uid"] for pod in node.proxy.status()["pods"]] == [offline.config.metadata.uid]
    assert node.is_in_box(node.add(offline))


# --- dry run ---------------------------------------------------------------------------------------------------------


def test_dry_run_makes_no_cgroup_and_changes_no_request_but_tells_what_it_would(node: Daemon) -> None:
    node.start(options=["--dry-run"])
    offline = node.run_pod("offline")
    main = node.add(offline)
    assert not node.is_in_box(offline)
    assert not node.is_in_box(main)
    node.wait_ticks(3)
    assert Tree(node.box.path).directories() == []
    assert node.runtime_annotations() == {}
    would = node.proxy.events("would_rewrite")
    assert [(event["method"], event["pod_uid"]) for event in would] == [("RunPodSandbox", offline.config.metadata.uid)]
    assert {change["field"] for change in would[0]["changes"]} >= {"cgroup_parent", "oom_score_adj"}
    status = node.proxy.status()
    assert (status["dry_run"], status["box"]["path"], status["pods"]) == (True, None, [])


# --- start and stop --------------------------------------------------------------------------------------------------


class Manager:
    """The service manager's end of NOTIFY_SOCKET; `messages` are the datagrams so far, as lists of lines."""

    def __init__(self, path: Path) -> None:
        self._messages: list[list[str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def messages(self) -> list[list[str]]:
        while True:
            try:
                self._messages.append(self._socket.recv(65536).decode().split("\n"))
            except BlockingIOError:
                return self._messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(lab: Path) -> Iterator[Manager]:
    manager = Manager(lab / "notify")
    yield manager
    manager.close()


def test_runtime_that_is_absent_at_the_start_is_awaited_behind_an_open_socket(node: Daemon) -> None:
    socket_file = node.proxy.directory / "runtime.sock"
    socket_file.rename(node.proxy.directory / "away.sock")
    node.proxy.start(until_ready=False)
    assert node.proxy.http("/readyz")[0] == 503
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as caught:
            node.client.call("Version", cri.VersionRequest(), timeout_s=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not node.proxy.status()["runtime"]["ready"]
    (node.proxy.directory / "away.sock").rename(socket_file)
    wait_until(node.proxy.is_ready, WAIT_S, "readiness", node.proxy.log)
    wait_until(node.client.is_ready, WAIT_S, "the client's connection")  # by the relay, it was closed meanwhile
    assert node.is_in_box(node.run_pod("offline"))
    status = node.proxy.status()["runtime"]
    assert (status["ready"], status["problem"]) == (True, "")


def test_service_manager_is_told_of_start_life_reload_and_stop(node: Daemon, manager: Manager) -> None:
    node.start(env={"NOTIFY_SOCKET": str(node.proxy.directory / "notify"), "WATCHDOG_USEC": "400000"})
    offline = node.run_pod("offline")

    def told(line: str, after: int = 0) -> bool:
        return any(line in message for message in manager.messages()[after:])

    assert manager.messages()[0] == ["READY=1", "STATUS=waiting for the runtime"]
    wait_until(lambda: manager.messages().count(["WATCHDOG=1"]) > 2, WAIT_S, "the watchdog to be fed again and again")
    seen = len(manager.messages())
    node.proxy.reload()
    wait_until(lambda: told("READY=1", seen), WAIT_S, "the end of the reload", node.proxy.log)
    reload = [m for m in manager.messages()[seen:] if m != ["WATCHDOG=1"] and not m[0].startswith("STATUS=")]
    assert reload[0][0] == "RELOADING=1"
    assert re.fullmatch(r"MONOTONIC_USEC=\d+", reload[0][1])
    assert reload[1] == ["READY=1", "STATUS=colocation on, runtime ready, 1 offline pods"]
    wait_until(
        lambda: told("STATUS=colocation on, runtime ready, 1 offline pods"), WAIT_S, "a status of its own accord"
    )

    node.proxy.stop()
    assert node.proxy.exit_status == 0
    assert [m for m in manager.messages() if not m[0].startswith("STATUS=")][-1] == ["STOPPING=1"]
    assert list(node.proxy.directory.glob("criproxy.sock*")) == []
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)
    assert node.limits.has_lowest_priority()
    assert node.is_in_box(offline)


def test_watchdog_is_not_fed_while_the_process_does_not_run(node: Daemon, manager: Manager) -> None:
    node.start(
        env={"NOTIFY_SOCKET": str(node.proxy.directory / "notify"), "WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}
    )
    node.wait_ticks(5)
    assert not any(message == ["WATCHDOG=1"] for message in manager.messages())


# --- drift and leftovers ---------------------------------------------------------------------------------------------


STDERR_TO = """
import os, socket, sys
log = socket.socket(socket.AF_UNIX)
log.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
log.connect(sys.argv[1])
os.dup2(log.fileno(), 2)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Runs Python with a stream socket for stderr, as systemd does."""


def test_log_reader_that_hangs_stops_no_call_and_hears_once_what_it_missed(lab: Path, node: Daemon) -> None:
    def count(metric: str) -> float:
        return float(
            next(line.split()[1] for line in proxy.http("/metrics")[1].splitlines() if line.startswith(metric))
        )

    proxy, listener = node.proxy, socket.socket(socket.AF_UNIX)
    listener.bind(str(lab / "log.sock"))
    listener.listen()
    proxy.configure({"cpu": {f"a_key_that_criproxy_does_not_have_{'x' * 400}_{n}": "v" * 60 for n in range(20)}})
    arguments: list[str | Path] = ["-m", "criproxy", "run", "--config", proxy.config_file]
    command: list[str | Path] = [sys.executable, "-c", STDERR_TO, lab / "log.sock", *arguments]
    process = Process("criproxy", command, lab / "out.log", {"PYTHONPATH": python_path()})
    reader, _ = listener.accept()
    try:
        process.wait_until(proxy.is_ready, WAIT_S, "readiness")
        failed = "criproxy_config_reload_failures_total"
        while not count("criproxy_log_lines_dropped_total"):
            before = count(failed)
            process.signal(signal.SIGHUP)
            process.wait_until(lambda before=before: count(failed) > before, WAIT_S, "the reload")  # type: ignore[misc]
            assert node.client.is_ready()
        dropped = count("criproxy_log_lines_dropped_total")
        assert [problem for problem in proxy.status()["problems"] if "lines of the log were dropped" in problem]

        text = b""
        while b"log_lines_dropped" not in text:
            text += reader.recv(65536)
        told = [json.loads(line) for line in text.splitlines() if b"log_lines_dropped" in line]
        assert [line["lines"] for line in told] == [dropped]
        wait_until(lambda: not [p for p in proxy.status()["problems"] if "dropped" in p], WAIT_S, "the log to be well")

        for _ in range(20):  # more than the socket holds
            process.signal(signal.SIGHUP)
            assert node.client.is_ready()
    finally:
        process.stop()
        reader.close()
        listener.close()
    assert process.exit_status == 0, "the end was to wait for nobody who reads the log"


def test_limit_that_somebody_else_changed_is_back_within_two_ticks_and_counted_once(node: Daemon) -> None:
    node.start()
    node.run_pod("offline")
    node.wait_ticks(2)
    files = {node.limits.quota: "90000", node.limits.memory: str(200 * MIB)}
    if node.limits.idle.exists():
        files[node.limits.idle] = "0"
    for count, (file, value) in enumerate(files.items(), 1):
        own = file.read_text()
        file.write_text(value)
        node.wait_ticks(2)
        assert file.read_text() == own, f"{file} was to be put back"
        node.wait_ticks(3)
        assert node.proxy.status()["box"]["drift"] == count
    assert f"criproxy_box_drift_total {float(len(files))}" in node.proxy.http("/metrics")[1].splitlines()


def test_box_that_somebody_removed_is_made_again_with_its_limits(node: Daemon) -> None:
    node.start()
    pod = node.run_pod("offline")
    node.client.stop_and_remove(pod)
    swept = lambda: node.proxy.status()["box"]["swept"] == 1  # noqa: E731
    wait_until(swept, WAIT_S, "the pod's cgroup to be swept", node.proxy.log)
    for directory in Tree(node.box.path).directories():
        directory.rmdir()
    node.wait_ticks(2)
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)
    assert node.limits.has_lowest_priority()
    assert node.is_in_box(node.run_pod("offline"))


def test_pod_cgroup_in_the_box_is_removed_with_the_pod_and_kubelet_s_own_is_not(node: Daemon) -> None:
    node.start()
    pod, other = node.run_pod("offline"), node.run_pod("offline")
    node.add(pod)
    node.add(other)
    own, boxed = told(pod.config.linux.cgroup_parent), f"{node.box.path}/pod{pod.config.metadata.uid}"
    everywhere = len(cgroups.hierarchies())
    assert len([path for path in Tree(boxed).directories() if str(path).endswith(spelled(boxed))]) == everywhere
    node.client.stop_and_remove(pod)
    wait_until(lambda: Tree(boxed).directories() == [], WAIT_S, "the pod's cgroup in the box to go", node.proxy.log)
    assert len(Tree(own).directories()) == everywhere
    assert node.is_in_box(other)
    wait_until(lambda: node.proxy.status()["box"]["swept"] > 0, WAIT_S, "the sweep to be counted", node.proxy.log)
    status = node.proxy.status()
    assert (status["box"]["swept"], [p["uid"] for p in status["pods"]]) == (1, [other.config.metadata.uid])


# --- the command line ------------------------------------------------------------------------------------------------


def criproxy(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "criproxy", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_status_shows_what_runs_and_fails_when_nothing_does(node: Daemon) -> None:
    node.start()
    pod = node.run_pod("offline")
    node.wait_ticks(1)
    text = criproxy("status", "--config", node.proxy.config_file)
    assert (text.returncode, text.stderr) == (0, "")
    for shown in (
        "colocation    on",
        "(ready, containerd",
        placement(node.box.path),
        f"default/{pod.config.metadata.name}",
    ):
        assert shown in text.stdout
    as_json = criproxy("status", "--json", "--config", node.proxy.config_file)
    assert as_json.returncode == 0
    assert [p["uid"] for p in json.loads(as_json.stdout)["pods"]] == [pod.config.metadata.uid]
    node.proxy.stop()
    gone = criproxy("status", "--config", node.proxy.config_file)
    assert (gone.returncode, gone.stdout) == (3, "")
    assert f"no criproxy answers at {node.proxy.asked_at}" in gone.stderr


def test_status_tells_kubelet_s_driver_once_an_online_pod_has_started_and_after_a_restart(node: Daemon) -> None:
    node.start()
    assert node.proxy.status()["cgroup"]["driver"] is None
    node.run_pod("online")
    status = node.proxy.status()
    assert (status["cgroup"]["driver"], status["box"]["path"]) == (driver(), None)
    node.proxy.restart()
    wait_until(
        lambda: node.proxy.status()["cgroup"]["driver"] == driver(), WAIT_S, "a running pod to tell", node.proxy.log
    )
    assert node.proxy.status()["box"]["path"] is None


def test_status_counts_no_pod_that_has_ended(node: Daemon) -> None:
    node.start()
    ended, runs = node.run_pod("offline"), node.run_pod("offline")
    node.client.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=ended.id))
    shown = [pod["uid"] for pod in node.proxy.status()["pods"]]
    node.proxy.restart()
    wait_until(lambda: node.proxy.status()["pods"], WAIT_S, "the runtime's pods", node.proxy.log)
    listed = [pod["uid"] for pod in node.proxy.status()["pods"]]
    assert shown == listed == [runs.config.metadata.uid]
    assert "criproxy_offline_sandboxes 1.0" in node.proxy.http("/metrics")[1]
    assert node.is_in_box(runs)


def test_status_and_why_agree_from_the_moment_that_colocation_is_on(node: Daemon) -> None:
    node.start(config(enabled=False))
    node.run_pod("offline")
    node.wait_ticks(3)
    node.switch(config())
    node.wait_ticks(2)
    status = node.proxy.status()
    why = json.loads(criproxy("status", "--why", "--json", "--config", node.proxy.config_file).stdout)
    assert status["colocation"] == "on"
    assert "colocation is" not in status["box"]["cpu"]["reason"]
    assert (status["decisions"][0]["applied"], why["decision"]["applied"]) == (True, True)


@pytest.mark.parametrize(
    ("engine", "waiting"),
    [pytest.param("grpc", [], id="grpc"), pytest.param("relay", ["proxy.engine"], id="relay")],
)
def test_status_tells_the_engine_and_that_another_waits_for_a_restart(
    node: Daemon, engine: str, waiting: list[str]
) -> None:
    node.start({**config(), "proxy": {"engine": engine}})
    assert node.is_in_box(node.run_pod("offline"))
    assert node.proxy.status()["engine"] == engine
    metrics = node.proxy.http("/metrics")[1]
    assert "criproxy_connections_broken_total 0.0" in metrics
    assert "criproxy_relay_given_up 0.0" in metrics
    node.switch({**config(), "proxy": {"engine": "grpc"}})
    assert node.proxy.status()["config"]["needs_restart"] == waiting


def test_check_tells_all_errors_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[colocation]\nenabled = true\n")
    good = criproxy("check", "--config", file)
    assert (good.returncode, good.stderr) == (0, "")
    assert "colocation on" in good.stdout
    file.write_text("[colocation]\nenabled = 1\n[cpu]\nmin_cores = 0\nmax_core = 2\n")
    bad = criproxy("check", "--config", file)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert [line.split(": ")[1] for line in bad.stderr.splitlines()] == [
        "cpu.max_core = 2",
        "colocation.enabled = 1",
        "cpu.min_cores = 0",
    ]
    file.unlink()
    gone = criproxy("check", "--config", file)
    assert gone.returncode == 1
    assert f"{file}: there is no such file" in gone.stderr


POD = """
apiVersion: v1
kind: Pod
metadata:
  name: job
  namespace: {namespace}
  uid: 4a6b
  labels: {{{label}: {kind}}}
  annotations: {{kubernetes.io/config.source: {source}}}
spec:
  containers:
  - name: main
    image: busybox
    resources: {resources}
"""
GUARANTEED = "{limits: {cpu: 500m, memory: 64Mi}}"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param(
            {"resources": GUARANTEED},
            ["class          offline", "place          /offline/pod4a6b", "CPU quota"],
            id="guaranteed",
        ),
        pytest.param({}, ["class          offline", "place          /offline/pod4a6b"], id="best-effort"),
        pytest.param({"kind": "online"}, ["class          online: every request passes as it came"], id="online"),
        pytest.param(
            {"namespace": "kube-system", "source": "file"},
            ["class          online (a static pod of kube-system always is)"],
            id="static-system",
        ),
    ],
)
def test_explain_tells_a_pod_s_class_and_place(tmp_path: Path, fields: dict[str, str], shown: list[str]) -> None:
    switch, pod = tmp_path / "config.toml", tmp_path / "pod.yaml"
    switch.write_text("[colocation]\nenabled = true\n")
    values = {"label": CLASS, "kind": "offline", "namespace": "default", "source": "api", "resources": "{}", **fields}
    pod.write_text(POD.format(**values))
    told = criproxy("explain", "--config", switch, pod)
    assert (told.returncode, told.stderr) == (0, "")
    assert [text for text in shown if text not in told.stdout] == []
    assert ("/offline/" in told.stdout) == ("offline" in shown[0])


def test_explain_of_what_is_no_pod_fails_and_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("kind: Service\n")
    told = criproxy("explain", file)
    assert told.returncode == 1
    assert str(file) in told.stderr
