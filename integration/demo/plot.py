"""The play as a picture in a file: who had the CPU, what criproxy decided, and how much the box was throttled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from integration.demo import DemoError
from integration.demo.sample import Sample, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ONLINE: Final = "#2f6fb0"
_OTHERS: Final = "#b9c4d0"
_BOX: Final = "#7fb77e"
_BOX_LINE: Final = "#2e7d32"
_PREDICTION: Final = "#e08a00"
_LIMIT: Final = "#c62828"
_WANTED: Final = "#111111"
_THROTTLED: Final = "#8e44ad"


def draw(samples: Sequence[Sample], setting: Setting, path: Path, subtitle: str) -> None:
    """Write the plot as PNG to `path`. Raises OSError when it cannot be written, DemoError without matplotlib."""
    pyplot = load_pyplot()
    figure, (who, decided, held) = pyplot.subplots(
        3, 1, sharex=True, figsize=(12, 9), height_ratios=(3, 3, 1), layout="constrained"
    )
    times = [sample.t_s for sample in samples]
    _who(who, times, samples, setting)
    _decided(decided, times, samples, setting)
    held.fill_between(
        times, [100 * sample.throttled_ratio for sample in samples], color=_THROTTLED, alpha=0.5, step="pre"
    )
    held.set(
        ylim=(0, 100), ylabel="box throttled\n(% of CPU time)", xlabel="seconds of the play", xlim=(0, setting.seconds)
    )
    for axes in (who, decided, held):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    _day_axis(who, setting)
    figure.suptitle(setting.title, fontsize=14, fontweight="bold")
    who.set_title(subtitle, fontsize=10, loc="left", color="#444444")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def load_pyplot() -> ModuleType:
    """For pictures in files. Raises DemoError where it does not load."""
    try:
        import matplotlib  # here, because it costs a second that only the end of a play should pay

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except (ImportError, RuntimeError) as error:  # numpy's wheels refuse old CPUs, and such as a VM may show
        why = " ".join(str(error).split())
        raise DemoError(f"No plot, because matplotlib does not load on this machine ({why}).") from error
    return pyplot


def _who(axes: "Axes", times: Sequence[float], samples: Sequence[Sample], setting: Setting) -> None:
    online = [sample.online_cores for sample in samples]
    others = [max(sample.rest_cores - sample.online_cores, 0.0) for sample in samples]
    box = [sample.box_cores for sample in samples]
    axes.stackplot(
        times,
        online,
        others,
        box,
        colors=(_ONLINE, _OTHERS, _BOX),
        alpha=0.85,
        labels=("online pod", "everything else (criproxy, too)", "offline pods (the box)"),
    )
    axes.plot(
        times, [sample.wanted_cores for sample in samples], color=_WANTED, lw=1, ls="--", label="what online wants"
    )
    _capacity(axes, setting)
    axes.set_ylabel("who has the CPU\n(cores)")


def _decided(axes: "Axes", times: Sequence[float], samples: Sequence[Sample], setting: Setting) -> None:
    def line(
        value: Callable[[Sample], float | None], label: str, colour: str, width: float, alpha: float = 1.0
    ) -> None:
        values = [value(sample) for sample in samples]
        known = [float("nan") if v is None else v for v in values]
        axes.plot(times, known, color=colour, lw=width, alpha=alpha, label=label)

    line(lambda sample: sample.node_cores, "node usage", "#9aa0a6", 1.0)
    line(lambda sample: sample.rest_cores, "online usage (node less box)", _ONLINE, 1.6)
    line(lambda sample: sample.prediction_cores, "prediction of online", _PREDICTION, 1.6)
    line(lambda sample: sample.limit_cores, "box limit", _LIMIT, 4.5, 0.4)  # wide: the usage lies on it
    line(lambda sample: sample.box_cores, "box usage", _BOX_LINE, 1.4)
    _capacity(axes, setting)
    axes.set_ylabel("what criproxy decides\n(cores)")


def _capacity(axes: "Axes", setting: Setting) -> None:
    axes.axhline(setting.capacity_cores, color="#555555", lw=0.8)
    axes.set_ylim(0, setting.capacity_cores * 1.05)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _day_axis(axes: "Axes", setting: Setting) -> None:
    """The trace's own hours above the plot, where it is compressed enough for hours to fit."""
    hour_s = 3600 / setting.compression
    top = axes.twiny()
    top.set_xlim(0, setting.seconds / hour_s)
    top.set_xlabel("hour of the trace")
