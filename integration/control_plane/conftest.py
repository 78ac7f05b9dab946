import time
from collections.abc import Callable, Iterator

import pytest

from integration.control_plane.cluster import SOON_S, Cluster
from integration.lab.clean import clean, leftovers
from integration.lab.client import CriClient
from integration.lab.clocks import wrong_clock
from integration.lab.containerd import Containerd
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.criproxy import QUICK, UNJUDGED, Criproxy
from integration.lab.directory import claimed, lab_name
from integration.lab.kubelet import Kubelet


@pytest.fixture(scope="module")
def cluster(say: Callable[[str], object]) -> Iterator[Cluster]:
    with claimed() as lab:
        try:
            began_s = time.monotonic()
            plane = ControlPlane(lab, wrong_clock(-24))
            plane.start()
            say(f"the control plane answers after {time.monotonic() - began_s:.1f} s")
            containerd = Containerd(lab)
            credential = plane.node_kubeconfig(lab_name(lab))
            config = {
                "colocation": {"enabled": True},
                "control": QUICK,
                "interference": UNJUDGED,
                "kubernetes": {"enabled": True, "kubeconfig": str(credential)},
            }
            proxy = Criproxy(lab, containerd.socket, config)
            often = {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "4s"}
            kubelet = Kubelet(lab, proxy.socket, settings=often, kubeconfig=credential)
            containerd.start()
            proxy.start()
            kubelet.start()
            with CriClient(containerd.socket) as client:
                node = Cluster(plane, containerd, proxy, kubelet, client)
                wait_for(lambda: plane.exists(node.path), SOON_S, "the node to register")
                account = "/api/v1/namespaces/default/serviceaccounts/default"
                wait_for(lambda: plane.exists(account), SOON_S, "the default service account")
                say(f"the node has joined after {time.monotonic() - began_s:.1f} s")
                yield node
        finally:
            clean(lab)
    assert leftovers(lab) == []
