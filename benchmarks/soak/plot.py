"""Draws samples into a PNG, a panel per measure."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak.watch import Sample


def draw(samples: Sequence[Sample], title: str, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = {
        "RSS, MiB": [sample.rss_mib for sample in samples],
        "open files": [float(sample.open_files) for sample in samples],
        "CPU, % of a core": [sample.cpu_percent for sample in samples],
        "calls/s": [sample.calls_per_s for sample in samples],
    }
    figure, every = pyplot.subplots(len(panels), figsize=(8.2, 5.6), sharex=True, layout="constrained")
    for axes, (name, values) in zip(every, panels.items(), strict=True):
        axes.plot([sample.at_s / 60 for sample in samples], values)
        axes.set_ylim(bottom=0, top=1.2 * max(*values, 0.01))  # from 0 on, so that what looks flat is flat
        axes.set_title(name, fontsize="small", loc="left")
        axes.grid(axis="y", alpha=0.3)
    every[-1].set_xlabel("minutes")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(file, format="png")
    pyplot.close(figure)
