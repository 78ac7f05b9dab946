from pathlib import Path

import pytest

from integration.demo.plot import draw
from integration.demo.sample import Sample, Setting

SETTING = Setting(
    "a day", seconds=10, compression=8640, capacity_cores=2.0, floor_cores=0.1, half_life_s=1.0, cgroup_version=2
)
FIRST = Sample(0.5, 0.5, 0.51, 1.62, 1.03, None, None, 0.0)
SECOND = Sample(1.0, 0.6, 0.58, 1.70, 1.01, 0.64, 1.05, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [(FIRST, SECOND), (FIRST,), ()], ids=["two", "one", "none"])
def test_draw_of_any_samples_writes_a_png(tmp_path: Path, samples: tuple[Sample, ...]) -> None:
    file = tmp_path / "new" / "plot.png"
    draw(samples, SETTING, file, "a subtitle")
    assert file.read_bytes().startswith(b"\x89PNG")
