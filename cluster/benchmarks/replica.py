"""What a replica costs: `PYTHONPATH=cluster python -m cluster.benchmarks.replica [--nodes N]`, from the root.

A replica that leads, as a process of its own, beside an API server that keeps N nodes (cluster/tests/fake_kube.py, in
another process). It is asked to convert 200 pods a second, open loop, over TLS: a late answer does not delay the next
question. Meanwhile a policy is changed that concerns all nodes.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import yaml

from cluster.tests.fake_kube import FakeKube
from cluster.tests.test_manifests import install
from criproxy_cluster.certificates import CONFIGURATION
from criproxy_cluster.names import POLICY

RATE = 200.0
CONNECTIONS = 20
NAME = "criproxy-cluster.criproxy-system.svc"


def serve(nodes: int, port: int) -> None:
    """The API server's process."""
    kube = FakeKube()
    install(kube)
    images = [{"names": [f"registry/image{n}@sha256:{'0' * 64}"], "sizeBytes": n} for n in range(30)]
    for number in range(nodes):
        labels = {f"label{n}.example.com/key": f"value{n}" for n in range(15)}
        labels |= {"kubernetes.io/hostname": f"node{number}", "pool": f"p{number % 10}"}
        kube.put(
            "nodes",
            {
                "metadata": {"name": f"node{number}", "labels": labels, "annotations": {}},
                "spec": {},
                "status": {"images": images, "allocatable": {"kubernetes.io/batch-cpu": "0"}},
            },
        )
    with kube.running(port):
        time.sleep(3600)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def question() -> bytes:
    """A pod of 8 kB, as a Job's may be."""
    containers = [
        {
            "name": f"c{n}",
            "image": f"registry/image{n}",
            "env": [{"name": f"VARIABLE_{e}", "value": "x" * 40} for e in range(30)],
            "resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        }
        for n in range(3)
    ]
    owner = {"kind": "Job", "name": "j", "uid": "3f0c", "controller": True}
    meta = {"name": "p", "labels": {"colocation.criproxy.io/class": "offline"}, "ownerReferences": [owner]}
    request = {"uid": "u", "operation": "CREATE", "object": {"metadata": meta, "spec": {"containers": containers}}}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident now, and at most."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, most = (int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, most


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, context: ssl.SSLContext, seconds: float) -> list[float]:
    """Latencies in seconds, sorted. Over connections that are kept, as the API server keeps them."""
    body, found = question(), []
    lines = (
        "POST /convert HTTP/1.1",
        f"Host: {NAME}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join((*lines, "", ""))
    idle: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        opened = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
        idle.put_nowait(opened)

    async def ask(due_s: float) -> None:
        reader, writer = await idle.get()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        said = await reader.readexactly(int(length.split(b":")[1]))
        idle.put_nowait((reader, writer))
        assert answer.startswith(b"HTTP/1.1 200") and b"JSONPatch" in said
        found.append(time.monotonic() - due_s)

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * RATE)):
            due_s = began_s + number / RATE
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            group.create_task(ask(due_s))
    while not idle.empty():
        idle.get_nowait()[1].close()
    return sorted(found)


def at(found: list[float], share: float) -> str:
    return f"{found[min(int(len(found) * share), len(found) - 1)] * 1000:.1f} ms"


class Api:
    """What the benchmark itself asks the API server."""

    def __init__(self, port: int) -> None:
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0)

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def patch(self, path: str, body: Any) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        self._client.patch(path, content=json.dumps(body), headers=headers).raise_for_status()

    def wait(self, path: str, condition: Any, seconds: float = 300.0) -> float:
        """Seconds until an object is as wanted."""
        began_s = time.monotonic()
        while not condition(self.get(path)):
            assert time.monotonic() - began_s < seconds, f"{path} did not become what it should"
            time.sleep(0.02)
        return time.monotonic() - began_s


_POLICIES = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
_CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"


def measure(nodes: int, seconds: float, kube_port: int, port: int, replica: subprocess.Popen[bytes]) -> None:
    api = Api(kube_port)
    api.wait(_CONFIGURATION, lambda found: found["webhooks"][0]["clientConfig"].get("caBundle"))
    bundle = api.get(_CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]
    context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    first_s = api.wait(f"{_POLICIES}/all", lambda found: found.get("status", {}).get("nodes") == nodes + 1)
    time.sleep(nodes / 100 + 5)
    print(f"{nodes} nodes seen after {first_s:.1f} s; {memory_mib(replica.pid)[0]:.1f} MiB")

    for words in ("at rest", "while a policy is written to all nodes"):
        if words != "at rest":
            spec = {"settings": {"cpu": {"reserve_cores": 7}}}
            api.patch(f"{_POLICIES}/all", {"metadata": {"generation": 9}, "spec": spec})
        before_s, began_s = cpu_s(replica.pid), time.monotonic()
        found = asyncio.run(load(port, context, seconds))
        cores = (cpu_s(replica.pid) - before_s) / (time.monotonic() - began_s)
        shown = ", ".join(f"{name} {at(found, share)}" for name, share in (("p50", 0.5), ("p99", 0.99), ("most", 1.0)))
        now, most = memory_mib(replica.pid)
        print(f"webhook {words}: {len(found)} pods at {RATE:.0f}/s: {shown}; {cores:.2f} cores")
        print(f"memory {words}: {now:.1f} MiB, {most:.1f} MiB at most")

    path = "/api/v1/nodes/node5"
    api.patch(path, {"metadata": {"labels": {"colocation.criproxy.io/switch": "off"}}})
    taken_s = api.wait(path, lambda found: "switch" in found["metadata"]["annotations"].get(POLICY, ""))
    print(f"a label of one node, while others are written: {taken_s * 1000:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    kube_port, port = free_port(), free_port()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(chosen.nodes, kube_port), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kubeconfig")
        context = {"cluster": "c", "user": "u", "namespace": "criproxy-system"}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{kube_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        file.write_text(yaml.safe_dump(config))
        while socket.socket().connect_ex(("127.0.0.1", kube_port)):
            time.sleep(0.1)
        log = Path(folder, "log")
        with log.open("wb") as said:
            command = [sys.executable, "-m", "criproxy_cluster", "run", "--port", str(port)]
            replica = subprocess.Popen(command, env={**os.environ, "KUBECONFIG": str(file)}, stderr=said)
        try:
            measure(chosen.nodes, chosen.seconds, kube_port, port, replica)
        finally:
            replica.terminate()
            replica.wait(30)
            server.kill()
            warnings = [line for line in log.read_text().splitlines() if '"info"' not in line]
            print(f"replica ended with {replica.returncode}; warnings: {len(warnings)}", *warnings[:5], sep="\n")


if __name__ == "__main__":
    main()
