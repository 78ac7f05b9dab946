"""The order in which kubelet reads its --config-dir: that of Go's filepath.WalkDir, for attach and for status."""

from pathlib import Path

import pytest

from criproxy.kubelet.attachment import attachment
from criproxy.kubelet.process import configured, walk
from tests.commands.attach.attach_bench import KUBELET_CONFIG, ON_RUNTIME, Bench, shell_node
from tests.fakes.node import CONFIG, LISTEN, FakeNode

ORDERS = [
    pytest.param(["10.conf", "20.conf", "9.conf"], id="names-not-numbers"),
    pytest.param(["B.conf", "a.conf", "ä.conf"], id="bytes-not-letters"),
    pytest.param(["a/z.conf", "a.conf"], id="directory-before-its-namesake"),
    pytest.param(["a/z.conf", "a-b.conf", "a.conf"], id="dash-and-dot-after-the-directory"),
    pytest.param(["10.conf", "20/a/b.conf", "20/x.conf", "30.conf"], id="depth-first"),
    pytest.param([".conf", ".hidden.conf", "a.conf"], id="hidden-files"),
    pytest.param([".d/a.conf", "a.conf"], id="hidden-directory"),
    pytest.param(["a.conf/b.conf", "c.conf"], id="directory-with-the-suffix"),
]


def file_of_endpoint(root: Path, directory: str) -> str:
    return configured([f"--config-dir={directory}"], root, "containerRuntimeEndpoint")[1]


@pytest.mark.parametrize("names", ORDERS)
def test_config_dir_is_read_in_kubelet_s_order(tmp_path: Path, names: list[str]) -> None:
    for name in reversed(names):
        file = tmp_path / "d" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"containerRuntimeEndpoint: unix:///{name}\n")
    assert walk(tmp_path, "/d") == [f"/d/{name}" for name in names]
    assert file_of_endpoint(tmp_path, "/d") == f"/d/{names[-1]}"


@pytest.mark.parametrize("names", ORDERS)
def test_status_takes_the_last_word_of_config_dir_as_kubelet_does(tmp_path: Path, names: list[str]) -> None:
    node = FakeNode(tmp_path / "root")
    for name in names:
        node.write(f"/k.d/{name}", f"containerRuntimeEndpoint: {ON_RUNTIME}\n")
    node.write(f"/k.d/{names[-1]}", f"containerRuntimeEndpoint: unix://{LISTEN}\n")
    node.served.add(LISTEN)
    shell_node(node, f"--config={KUBELET_CONFIG} --config-dir=/k.d")
    assert attachment(LISTEN, node.root).where == f"by containerRuntimeEndpoint in /k.d/{names[-1]}"


@pytest.mark.parametrize(
    ("directory", "found"),
    [("/real", ["/real/a.conf"]), ("/link", []), ("/link/", ["/link/a.conf"]), ("/none", [])],
    ids=["directory", "link", "link-with-a-slash", "nothing"],
)
def test_links_are_followed_as_kubelet_does(tmp_path: Path, directory: str, found: list[str]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.conf").write_text("")
    (tmp_path / "real/inner").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to("real")
    assert walk(tmp_path, directory) == found


def test_status_does_not_search_the_node_for_an_empty_config_dir(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "root")
    node.write("/etc/any.conf", f"containerRuntimeEndpoint: unix://{LISTEN}\n")
    shell_node(node, f"--config={KUBELET_CONFIG} --config-dir=")
    assert attachment(LISTEN, node.root).state == "no"


def test_attach_and_detach_by_a_config_dir_that_ends_in_a_slash_give_the_bytes_back(bench: Bench) -> None:
    bench.node.write("/etc/kubelet.d/10-x.conf", f"{CONFIG}containerRuntimeEndpoint: {ON_RUNTIME}\n")
    shell_node(bench.node, f"--config={KUBELET_CONFIG} --config-dir=/etc/kubelet.d/")
    before = bench.node.files()
    assert bench.attach() == 0, bench.err
    assert bench.attach() == 0, bench.err
    assert f"already attached: kubelet uses unix://{LISTEN}, by" in bench.out
    assert bench.detach() == 0, bench.err
    assert (bench.node.files(), bench.node.endpoint) == (before, ON_RUNTIME)
