"""Brings the demo's node up: containerd, criproxy before it, and the three pods; tells where they ended up."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from criproxy.cgroup.naming import BOX
from criproxy.model import CPU
from criproxy.observe.status import ResourceStatus, from_json
from integration.demo import DemoError
from integration.demo.curve import Play
from integration.demo.load import offline_command, online_command
from integration.demo.meter import Meter, set_shares
from integration.demo.place import Place
from integration.demo.pods import OFFLINE, ONLINE, CriStarter, KubeletStarter, Starter, begin, cgroup_of, specs
from integration.demo.screen import Say
from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Criproxy
from integration.lab.kubelet import Kubelet

_HALF_LIFE_S: Final = 900.0
_RAISE_AFTER_S: Final = 60.0
_MAX_RAISE_RATIO: Final = 0.1
_LEAST_HALF_LIFE_S: Final = 0.1
_LEAD_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """A running node. `paths` are the cgroups of the node ("/"), the box and the online pod, by those names."""

    containerd: Containerd
    criproxy: Criproxy
    client: CriClient
    online: Container
    paths: dict[str, str]

    @property
    def meter(self) -> Meter:
        return Meter(self.paths)

    def cpu(self) -> ResourceStatus | None:
        """What criproxy says of CPU at its last tick; None while it does not, or has no box yet."""
        code, body = self.criproxy.http("/status")
        if code != 200:
            return None
        return from_json(body).box.resources.get(CPU)

    def begin(self) -> float:
        """Start the online pod's play; returns the moment when it begins (CLOCK_MONOTONIC)."""
        return begin(self.client, self.online, _LEAD_S)

    def check(self) -> None:
        """Raises DemoError when containerd or criproxy has ended."""
        for name, process, log in (
            ("containerd", self.containerd, self.containerd.log),
            ("criproxy", self.criproxy, self.criproxy.log),
        ):
            if not process.is_alive():
                last = log.read_text(errors="replace").splitlines()[-1:]
                raise DemoError(f"{name} has ended during the play; the last line of its log: {' '.join(last)}")


def half_life_s(play: Play) -> float:
    """The predictor's default half-life, compressed as the trace is, as far as criproxy takes it; never stretched."""
    return max(_HALF_LIFE_S / max(play.compression, 1.0), _LEAST_HALF_LIFE_S)


def raise_after_s(play: Play) -> float:
    """How long a small raise of the limit waits: the default, compressed likewise."""
    return _RAISE_AFTER_S / max(play.compression, 1.0)


def max_raise_ratio(play: Play) -> float:
    """How far the limit may rise per decision: the default, stretched likewise."""
    return min(_MAX_RAISE_RATIO * max(play.compression, 1.0), 1.0)


@contextmanager
def stage(place: Place, play: Play, cores: int, say: Say, *, port: int, with_kubelet: bool) -> Iterator[Stage]:
    """Bring the node up in the place's directory; the place's `clear` takes it down.

    Raises LabError, grpc.RpcError or OSError when something does not start.
    """
    with contextlib.ExitStack() as stack:
        Tree(place.cgroup).make()
        set_shares(place.cgroup, cores * 1024)  # it is to the machine's other programs what kubepods is on a node
        with step(say, f"a private containerd in {place.lab}, with an image built from busybox"):
            containerd = Containerd(place.lab)
            containerd.start()
        with step(say, f"criproxy before it, with metrics at http://127.0.0.1:{port}/metrics"):
            criproxy = Criproxy(place.lab, containerd.socket)
            criproxy.address = f"127.0.0.1:{port}"
            criproxy.configure(_config(criproxy.address, play))
            criproxy.start()
        client = stack.enter_context(CriClient(criproxy.socket))
        starter: Starter = CriStarter(client, place.cgroup, cores)
        if with_kubelet:
            with step(say, "a real kubelet, in front of criproxy"):
                kubelet = Kubelet(place.lab, criproxy.socket)
                kubelet.start()
                starter = KubeletStarter(kubelet)
        with step(say, "an online pod and two offline pods" + ("" if with_kubelet else ", by a small CRI client")):
            pods = specs(online_command(play, cores), offline_command(cores), play.peak_cores)
            containers = starter.run(pods)
        online = cgroup_of(client.pid(containers[ONLINE]))
        box = f"{place.cgroup}/{BOX}"
        _check_box(box, [cgroup_of(client.pid(containers[name])) for name in OFFLINE])
        yield Stage(containerd, criproxy, client, containers[ONLINE], {"node": "/", "box": box, "online": online})


def _config(address: str, play: Play) -> dict[str, dict[str, object]]:
    """criproxy's defaults, but for what time compression needs: the calibrated predictor learns its margin for days."""
    control = {
        "predictor": "histogram",
        "half_life_s": half_life_s(play),
        "raise_after_s": raise_after_s(play),
        "max_raise_ratio": max_raise_ratio(play),
    }
    return {
        "colocation": {"enabled": True},
        "control": control,
        "observe": {"address": address},
    }


def _check_box(box: str, offline: Sequence[str]) -> None:
    for path in offline:
        if not path.startswith(f"{box}/"):
            raise DemoError(
                f"An offline pod runs in the cgroup {path} and not in the box {box}: criproxy did not place it."
            )


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    say(f"  {time.monotonic() - start:5.1f} s  {what}")
