"""Which disks keep to the box's weight: as data, and read from a /sys/block and a cgroup tree of plain files."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.disk_weight import Disk, DiskWeight, DiskWeights, judge, parse_costed
from tests.fakes.kernel import FakeKernel

BOX = "/kubelet/offline"
MIB = 1 << 20
ALL = ("bfq", "cfq", "io.cost")


@pytest.mark.parametrize(
    ("scheduler", "lowest", "costed", "keeper", "why"),
    [
        pytest.param("bfq", ALL, (), "bfq", "", id="bfq"),
        pytest.param("cfq", ALL, (), "cfq", "", id="cfq"),
        pytest.param("none", ALL, ("8:0",), "io.cost", "", id="io.cost"),
        pytest.param("none", ALL, ("8:1",), "", "scheduler none keeps to no weight", id="io.cost-of-another-disk"),
        pytest.param("mq-deadline", ALL, (), "", "scheduler mq-deadline keeps to no weight", id="mq-deadline"),
        pytest.param("", ALL, (), "", "scheduler none keeps to no weight", id="without-a-scheduler"),
        pytest.param("bfq", ("io.cost",), (), "", "the box has no weight for bfq", id="weight-not-set"),
        pytest.param("bfq", ("io.cost",), ("8:0",), "io.cost", "", id="one-of-two-keepers"),
    ],
)
def test_weight_is_in_force_where_something_keeps_to_it(
    scheduler: str, lowest: tuple[str, ...], costed: tuple[str, ...], keeper: str, why: str
) -> None:
    assert judge(Disk("sda", "8:0", scheduler), lowest, costed) == DiskWeight("sda", keeper, why)


def test_costed_disks_are_those_that_are_switched_on() -> None:
    qos = "8:0 enable=1 ctrl=auto rpct=95.00\n8:16 enable=0 ctrl=auto\n259:0 enable=1"
    assert parse_costed(qos) == {"8:0", "259:0"}
    assert parse_costed("") == frozenset()


class Node:
    """Disks and cgroups in a directory."""

    def __init__(self, root: Path, version: int) -> None:
        (root / "kernel").mkdir()
        self.kernel = FakeKernel(root / "kernel", version)
        self.version = version
        self.blocks = root / "block"
        self.blocks.mkdir()

    def disk(
        self,
        name: str,
        scheduler: str | None = "none [bfq]",
        size: str = "100",
        slaves: str = "",
        *,
        hidden: bool = False,
    ) -> None:
        directory = self.blocks / name
        (directory / "queue").mkdir(parents=True)
        (directory / "slaves" / slaves).mkdir(parents=True)
        (directory / "size").write_text(f"{size}\n")
        (directory / "dev").write_text("8:0\n")
        if hidden:
            (directory / "hidden").write_text("1\n")
        if scheduler is not None:
            (directory / "queue" / "scheduler").write_text(f"{scheduler}\n")

    def bound(self) -> None:
        driver = detect(self.kernel, self.kernel.root)
        driver.ensure(BOX)
        if self.version == 2:
            self.kernel.by_hand(f"cg{BOX}/io.bfq.weight", "default 100")
        driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    def look(self, box: str | None = BOX) -> dict[str, str]:
        """What keeps it, by disk."""
        weights = DiskWeights(self.kernel, self.kernel.root, self.blocks)
        return {one.name: one.kept_by for one in weights.read(self.version, box)}


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, request.param)


def test_what_the_driver_has_set_is_in_force_with_bfq(node: Node) -> None:
    node.disk("sda")
    node.disk("sdb", "[mq-deadline] bfq")
    node.disk("nvme0n1", None)
    node.bound()
    assert node.look() == {"nvme0n1": "", "sda": "bfq", "sdb": ""}


def test_box_without_the_weight_is_said_to_be_without(node: Node) -> None:
    node.disk("sda")
    node.bound()
    file = "cg{}/io.bfq.weight" if node.version == 2 else "blkio{}/blkio.bfq.weight"
    node.kernel.by_hand(file.format(BOX), "500")
    assert node.look() == {"sda": ""}


def test_before_the_first_pod_it_is_told_as_it_will_be(node: Node) -> None:
    node.disk("sda")
    assert node.look(None) == {"sda": "bfq"}


def test_io_cost_keeps_it_where_it_is_switched_on(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    node.disk("sda", "[none]")
    node.bound()
    assert node.look() == {"sda": ""}
    Path(node.kernel.root, "cg/io.cost.qos").write_text("8:0 enable=1 ctrl=auto\n")
    assert node.look() == {"sda": "io.cost"}


def test_what_is_no_disk_is_left_out(node: Node) -> None:
    for name in ("loop0", "zram0", "ram1", "sr0"):
        node.disk(name)
    node.disk("sdc", size="0")
    node.disk("dm-0", slaves="sda")
    node.disk("nvme0c0n1", None, hidden=True)
    node.disk("sda")
    assert list(node.look(None)) == ["sda"]
