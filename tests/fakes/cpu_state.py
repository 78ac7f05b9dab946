"""What kubelet's CPU manager writes to its state file."""

import json

# As kubelet 1.20 writes it: one pod with two containers that have CPUs of their own.
STATIC = b'{"policyName":"static","defaultCpuSet":"0,4-7","entries":{"u1":{"a":"1","b":"2-3"}},"checksum":1353318690}'


def static(default: str, **entries: str) -> bytes:
    return json.dumps(
        {
            "policyName": "static",
            "defaultCpuSet": default,
            "entries": {uid: {"main": cpus} for uid, cpus in entries.items()},
            "checksum": 1,
        }
    ).encode()


# As kubelet 1.37 has it with PodLevelResourceManagers: a pod with three CPUs, of which one is a container's own, a pod
# with two CPUs that its containers share, and a pod with a container that has a CPU.
IN_DATA = {
    "policyName": "static",
    "defaultCpuSet": "0",
    "entries": {"u1": {"a": "1"}, "u2": {"a": "4-5", "b": "4-5"}, "u3": {"a": "6"}},
    "podEntries": {"u1": {"cpuSet": "1-3"}, "u2": {"cpuSet": "4-5"}},
}
POOLS = {"u1": frozenset({1, 2, 3}), "u2": frozenset({4, 5}), "u3": frozenset({6})}


def enveloped(checkpoint: object) -> bytes:
    """As kubelet writes a checkpoint since 1.37: a text, beside what is there for kubelets of before."""
    beside = {"policyName": "static", "defaultCpuSet": "0", "entries": IN_DATA["entries"], "checksum": 3413949283}
    return json.dumps({**beside, "data": json.dumps(checkpoint), "dataChecksum": 3106021461}).encode()


NONE = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
