"""What keeps disks to a weight is switched on where that is asked for, and put back where it was changed alone."""

import errno
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from criproxy.cgroup.disk_keepers import DiskKeepers, Keeper, Kept
from criproxy.cgroup.disk_weight import DiskWeights
from criproxy.cgroup.driver import CgroupError
from tests.fakes.kernel import FakeKernel


class Node:
    """Two disks, of which the kernel offers bfq for one."""

    def __init__(self, root: Path, version: int = 2) -> None:
        (root / "kernel").mkdir()
        self.kernel = FakeKernel(root / "kernel", version)
        self.qos = Path(self.kernel.root, "cg/io.cost.qos")
        self.record = root / "criproxy.disks"
        self.blocks = root / "block"
        for name, number, schedulers in (("sda", "8:0", "[mq-deadline] none bfq"), ("sdb", "8:16", "[none]")):
            (self.blocks / name / "queue").mkdir(parents=True)
            for file, text in (("size", "100"), ("dev", number), ("queue/scheduler", schedulers)):
                (self.blocks / name / file).write_text(f"{text}\n")
        if version == 2:
            self.qos.write_text("")

    def keep(self, keeper: Keeper) -> Kept:
        """By a process that remembers nothing."""
        weights = DiskWeights(self.kernel, self.kernel.root, self.blocks)
        return DiskKeepers(self.kernel, self.record, weights).keep(keeper)

    def scheduler(self, disk: str = "sda") -> str:
        return (self.blocks / disk / "queue/scheduler").read_text().strip()

    def costed(self) -> dict[str, str]:
        return {line.split()[0]: line.split()[1] for line in self.qos.read_text().splitlines()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_io_cost_is_switched_on_for_each_disk_once_and_off_again(node: Node) -> None:
    first, again = node.keep("io.cost"), node.keep("io.cost")
    on = node.costed()
    back = node.keep("leave")

    assert (first, again) == (Kept({"sda": "io.cost on", "sdb": "io.cost on"}), Kept())
    assert (on, node.costed()) == (
        dict.fromkeys(("8:0", "8:16"), "enable=1"),
        dict.fromkeys(("8:0", "8:16"), "enable=0"),
    )
    assert back.switched == {"sda": "io.cost off", "sdb": "io.cost off"}
    assert not node.record.exists()


def test_bfq_is_chosen_where_it_is_offered_and_the_scheduler_put_back(node: Node) -> None:
    kept = node.keep("bfq")
    chosen = node.scheduler()
    node.keep("leave")

    assert kept == Kept({"sda": "bfq on"}, {"sdb": "the kernel offers no bfq for it: load the module bfq"})
    assert (chosen, node.scheduler(), node.scheduler("sdb")) == ("bfq", "mq-deadline", "[none]")


def test_what_an_administrator_has_switched_on_stays(node: Node) -> None:
    node.qos.write_text("8:0 enable=1 ctrl=user\n")
    node.keep("io.cost")
    node.keep("leave")

    assert node.costed() == {"8:0": "enable=1", "8:16": "enable=0"}


def test_what_an_administrator_has_changed_since_is_not_put_back(node: Node) -> None:
    node.keep("bfq")
    (node.blocks / "sda/queue/scheduler").write_text("[none] bfq\n")

    assert node.keep("leave") == Kept()
    assert node.scheduler() == "[none] bfq"


def test_what_somebody_has_switched_off_is_on_with_the_next_look(node: Node) -> None:
    node.keep("io.cost")
    node.qos.write_text("8:0 enable=0\n8:16 enable=1\n")

    assert node.keep("io.cost").switched == {"sda": "io.cost on"}


def test_other_means_take_the_place_of_the_first(node: Node) -> None:
    node.keep("io.cost")
    node.keep("bfq")

    assert (set(node.costed().values()), node.scheduler()) == ({"enable=0"}, "bfq")
    assert node.record.read_text() == "bfq sda mq-deadline\n"


def test_record_is_for_its_own_user_alone(node: Node) -> None:
    node.keep("bfq")
    assert stat.S_IMODE(node.record.stat().st_mode) == 0o600


def test_record_of_2_mib_is_not_read_and_what_it_says_stays(node: Node) -> None:
    node.record.write_bytes(b"x" * (2 << 20))
    with pytest.raises(OSError, match=r"criproxy\.disks: it has more than 1 MiB: .* remove it"):
        node.keep("bfq")
    assert node.scheduler() == "[mq-deadline] none bfq"


def test_disk_that_is_gone_is_forgotten(node: Node) -> None:
    node.keep("bfq")
    (node.blocks / "sda/size").write_text("0\n")

    assert node.keep("leave") == Kept()
    assert not node.record.exists()


@pytest.mark.parametrize(
    ("keeper", "spoil", "why"),
    [
        pytest.param("io.cost", lambda node: node.qos.unlink(), "a kernel with it", id="no-io.cost"),
        pytest.param(
            "bfq",
            lambda node: (node.blocks / "sda/queue/scheduler").write_text("[none]\n"),
            "load the module bfq",
            id="no-bfq",
        ),
    ],
)
def test_disk_that_can_not_be_switched_says_why(
    node: Node, keeper: Keeper, spoil: Callable[[Node], object], why: str
) -> None:
    spoil(node)
    kept = node.keep(keeper)

    assert (kept.switched, why in kept.failures["sda"], node.record.exists()) == ({}, True, False)


def test_v1_has_no_io_cost(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    (mountinfo := Path(node.kernel.root, "self/mountinfo")).write_text(
        "".join(line for line in mountinfo.read_text().splitlines(keepends=True) if "cgroup2" not in line)
    )

    assert set(node.keep("io.cost").failures.values()) == {"io.cost takes cgroup v2"}


def test_disk_that_is_refused_keeps_no_other_from_being_switched(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write = node.kernel.write

    def refusing(file: str, value: str) -> None:
        if value.startswith("8:0 "):
            raise CgroupError("cannot write: EOPNOTSUPP")
        write(file, value)

    monkeypatch.setattr(node.kernel, "write", refusing)

    assert node.keep("io.cost") == Kept({"sdb": "io.cost on"}, {"sda": "cannot write: EOPNOTSUPP"})


def test_what_can_not_be_put_back_is_told_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.keep("bfq")
    with monkeypatch.context() as patch:
        patch.setattr(node.kernel, "write", _read_only)
        kept = node.keep("leave")

    assert "let the service write there" in kept.failures["sda"]
    assert node.keep("leave").switched == {"sda": "bfq off"}


def _read_only(file: str, value: str) -> None:
    raise CgroupError(f"cannot write {value!r} to {file}: EROFS", errno.EROFS)


@pytest.mark.parametrize(
    "line", ["bfq ../../x none", "bfq sda mq;rm", "io.cost 8:0 enable=1", "", "nonsense", "io.cost 8:0"]
)
def test_line_of_the_record_that_is_none_of_ours_is_left_out(node: Node, line: str) -> None:
    node.qos.write_text("8:0 enable=1\n")
    node.record.write_text(f"{line}\n")
    node.kernel.writes.clear()

    assert node.keep("leave") == Kept()
    assert node.kernel.writes == []
