"""A kubelet that starts while its runtime is not there yet: through criproxy it fares as it does directly.

Its first call, Version, is tried once, so it ends; systemd would start it anew. Once the runtime is there, kubelet is
to be well at its first attempt, and to have the runtime's answer to RuntimeConfig, which it asks for since 1.34.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.lab.containerd import Containerd
from integration.lab.criproxy import ENGINES, Criproxy
from integration.lab.kubelet import Kubelet
from integration.lab.process import wait_until

ENDS_S = 60.0
STARTS = 3
AWAY_S = 6.0
"""How long the runtime stays away after that: until whoever tries to connect by itself does so each few seconds."""


@pytest.mark.parametrize("way", ["direct", *ENGINES])
def test_kubelet_ends_without_its_runtime_and_is_well_as_soon_as_that_is_there(
    lab: Path, way: str, say: Callable[[str], object]
) -> None:
    containerd = Containerd(lab)
    proxy = Criproxy(lab, containerd.socket, {"proxy": {"engine": "relay" if way == "direct" else way}})
    proxy.start(until_ready=False)
    kubelet = Kubelet(lab, containerd.socket if way == "direct" else proxy.socket)

    ended_s = []
    for _ in range(STARTS):
        began_s = time.monotonic()
        kubelet.start(until_ready=False)
        wait_until(lambda: not kubelet.is_alive(), ENDS_S, "kubelet to end", kubelet.log)
        ended_s.append(time.monotonic() - began_s)
    in_vain = kubelet.log.read_text()
    time.sleep(AWAY_S)
    containerd.start()
    kubelet.start()
    log = kubelet.log.read_text()[len(in_vain) :]

    say(f"{way}: kubelet ended after {', '.join(f'{one:.2f} s' for one in ended_s)}")
    assert "code = Unavailable" in in_vain
    asked = ("Using cgroup driver setting received from the CRI runtime", "Falling back to using cgroupDriver")
    assert any(answer in log for answer in asked)
