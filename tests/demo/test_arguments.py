from pathlib import Path

import pytest

from integration.demo import DemoError
from integration.demo.__main__ import parse
from integration.demo.load import DAY


def test_parse_without_arguments_plays_the_shipped_day_in_90_seconds() -> None:
    options = parse([])
    assert (options.seconds, options.trace, options.kubelet, options.cluster) == (90, DAY, False, False)
    assert options.plot.is_absolute() and options.plot.name == "demo.png" and DAY.exists()


def test_parse_with_everything_takes_everything() -> None:
    options = parse(
        ["--seconds", "15.5", "--trace", "t.csv", "--trace-id", "a", "--kubelet", "--port", "1234", "--plot", "p.png"]
    )
    assert (options.seconds, options.trace, options.trace_id) == (15.5, Path("t.csv"), "a")
    assert (options.kubelet, options.port, options.plot) == (True, 1234, Path("p.png").absolute())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--seconds", "9"], "--seconds 9 is out of range: give 10 to 86400"),
        (["--seconds", "nan"], "--seconds nan is out of range"),
        (["--others", "46"], "--others 46 is out of range: give 0 to half of --seconds"),
        (["--others", "10", "--cluster"], "leave out --cluster and --spark"),
        (["--port", "0"], "--port 0 is no TCP port"),
        (["--plot", "p.svg"], "does not end in .png"),
        (["--cluster", "--kubelet"], "leave out --kubelet and --trace"),
        (["--cluster", "--trace=x.csv"], "leave out --kubelet and --trace"),
        (["--spark", "--cluster"], "leave out --cluster, --kubelet and --trace"),
    ],
)
def test_parse_with_a_bad_value_says_what_to_give(argv: list[str], says: str) -> None:
    with pytest.raises(DemoError, match=says):
        parse(argv)


@pytest.mark.parametrize("argv", [["--second", "20"], ["--bogus"], ["--seconds", "soon"]])
def test_parse_with_an_unknown_argument_exits(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(argv)


def test_cluster_has_a_picture_of_its_own() -> None:
    assert parse(["--cluster"]).plot.name == "demo-cluster.png"
