"""Where kubelet's cgroups are: as the running criproxy has seen, else as kubelet was told, else either way."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from criproxy.cgroup.naming import DEFAULT_BOXES, BoxPath
from criproxy.commands.explain.command import places
from criproxy.kubelet.process import cgroup_driver
from criproxy.observe.status import BoxStatus, CgroupStatus, ConfigStatus, RuntimeStatus, Status
from criproxy.observe.why import Why
from tests.answering import Answers, answering

CGROUPFS, SYSTEMD = DEFAULT_BOXES
CONFIG = "/var/lib/kubelet/config.yaml"
HERE, BY_FILE = f"--config={CONFIG}", f"cgroupDriver in {CONFIG}"
STATUS = Status(
    version="9",
    pid=1,
    uptime_s=1.0,
    dry_run=False,
    colocation="on",
    runtime=RuntimeStatus("/r", ready=True, version="", problem=""),
    config=ConfigStatus("/c", (), ()),
    box=BoxStatus(None, 0, 0, 0, {}),
    pods=(),
)


def node(root: Path, flags: str | None, config: str) -> Path:
    """`flags` None: no kubelet runs."""
    files = {CONFIG: config}
    if flags is not None:
        files |= {
            "/sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs": "7\n",
            "/proc/7/comm": "kubelet\n",
            "/proc/7/cmdline": "\0".join(["/usr/bin/kubelet", *flags.split()]),
        }
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("flags", "config", "driver", "origin"),
    [
        pytest.param(HERE, "cgroupDriver: systemd\n", "systemd", BY_FILE, id="file"),
        pytest.param(HERE, '{"cgroupDriver": "cgroupfs"}', "cgroupfs", BY_FILE, id="json"),
        pytest.param(
            f"--config={CONFIG} --cgroup-driver=systemd", "cgroupDriver: cgroupfs\n", "systemd", "a flag of kubelet's",
            id="flag-first",
        ),
        pytest.param("--cgroup-driver systemd", "", "systemd", "a flag of kubelet's", id="flag"),
        pytest.param("--v=2", "cgroupDriver: systemd\n", "", "", id="file-not-used"),
        pytest.param(HERE, "# cgroupDriver: systemd\n", "", "", id="comment"),
        pytest.param(None, "cgroupDriver: systemd\n", "systemd", BY_FILE, id="no-kubelet-runs"),
        pytest.param(None, "", "", "", id="nothing"),
    ],
)  # fmt: skip
def test_driver_is_what_kubelet_was_told(
    tmp_path: Path, flags: str | None, config: str, driver: str, origin: str
) -> None:
    root = node(tmp_path, flags, config)
    assert cgroup_driver(root) == (driver, origin)
    boxes = {"systemd": (SYSTEMD,), "cgroupfs": (CGROUPFS,), "": DEFAULT_BOXES}[driver]
    found, known = places(tmp_path / "nobody", root)
    assert (found, known.partition(":")[0]) == (boxes, f"by {origin}" if origin else "if that is kubelet's")


def test_configuration_that_is_not_understood_is_said_and_is_not_none(tmp_path: Path) -> None:
    root = node(tmp_path, HERE, "cgroupDriver: [systemd\n")
    found, known = places(tmp_path / "nobody", root)
    assert found == DEFAULT_BOXES
    assert f"if that is kubelet's: {CONFIG}: it is no YAML" in known


@pytest.mark.parametrize(
    ("box", "driver", "expected"),
    [
        pytest.param("kubelet-offline.slice", "systemd", BoxPath("kubelet-offline.slice"), id="slice"),
        pytest.param("/kubelet/offline", "cgroupfs", BoxPath("/kubelet/offline"), id="path"),
        pytest.param(None, "systemd", SYSTEMD, id="driver-alone"),
    ],
)
def test_running_criproxy_has_the_first_word(tmp_path: Path, box: str | None, driver: str, expected: BoxPath) -> None:
    root = node(tmp_path, HERE, "cgroupDriver: cgroupfs\n")
    status = replace(STATUS, box=replace(STATUS.box, path=box), cgroup=CgroupStatus(2, driver))  # type: ignore[arg-type]
    with answering(tmp_path / "s", _endpoints(status)):
        assert places(tmp_path / "s", root) == ((expected,), "as its pods show")


def test_running_criproxy_that_has_seen_no_pod_leaves_the_word_to_kubelet(tmp_path: Path) -> None:
    root = node(tmp_path, None, "cgroupDriver: systemd\n")
    with answering(tmp_path / "s", _endpoints(STATUS)):
        assert places(tmp_path / "s", root) == ((SYSTEMD,), f"by {BY_FILE}")


def _endpoints(status: Status) -> Answers:
    return Answers(
        page=lambda: "",
        metrics=lambda: b"",
        unhealthy=lambda: None,
        unready=lambda: None,
        status=lambda: status,
        why=lambda asked_s: Why(asked_s, None, None),
    )
