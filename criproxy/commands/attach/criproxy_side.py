"""The criproxy that kubelet is attached to, as attach and detach need to know it."""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from criproxy.commands.attach.edits import NodeError
from criproxy.commands.attach.host import Host
from criproxy.kubelet.attachment import same_socket
from criproxy.observe.client import read_json

_CALLS: Final = re.compile(r"^criproxy_calls_total\{[^\n]*\} (\S+)$", re.MULTILINE)

_STATUS: Final = {"runtime": dict, "pods": list, "attached": dict}
"""The query for its status."""

_FIRST_CALLS: Final = 3
"""Kubelet makes more within its first second; one alone may be a call of our own that is counted only now."""


class RunningCriproxy(Struct, frozen=True):
    """Where its config says that it is; `status` is the socket that gives its status."""

    config_file: str
    listen: str
    runtime: str
    status: str

    def check(self, host: Host) -> str:
        """The runtime behind it, by name. Raises NodeError when kubelet would not reach the configured one by it."""
        try:
            status = self._status(host)
        except NodeError as error:
            raise NodeError(f"criproxy does not run: {error}; `systemctl start criproxy` first") from error
        if status["nri"] is not None:
            raise NodeError(
                'the running criproxy has proxy.front = "nri": the runtime calls it, and kubelet stays as it is: '
                'take the DaemonSet\'s pod off this node, or set proxy.front = "cri" and `systemctl restart criproxy`'
            )
        said = status["runtime"]
        if not same_socket(host.root, said["socket"], self.runtime):
            raise NodeError(
                f"the running criproxy is before {said['socket']}, and {self.config_file} says {self.runtime}: "
                "`systemctl restart criproxy` first"
            )
        if not said["ready"]:
            raise NodeError(f"criproxy has no runtime: {said['problem']}; see `criproxy status`")
        try:
            through, direct = host.machine.version(self.listen), host.machine.version(self.runtime)
        except NodeError as error:
            raise NodeError(f"criproxy does not serve: {error}; see `criproxy status`") from error
        if through != direct:
            raise NodeError(
                f"{self.listen} answers as {through}, and {self.runtime} as {direct}: see `criproxy status`"
            )
        return direct

    def calls(self, host: Host) -> float:
        """How many calls it has carried. Raises NodeError when it does not answer."""
        return sum(float(value) for value in _CALLS.findall(host.machine.ask(self.status, "/metrics")))

    def unseen(self, host: Host, since: float) -> str:
        """In words that kubelet has not called since `since` was counted; "" when it has.

        A lower count says that criproxy has started anew.
        """
        now = self.calls(host)
        has_called = now - (since if now >= since else 0) >= _FIRST_CALLS
        return "" if has_called else "criproxy has seen no call of kubelet's"

    def caller(self, host: Host) -> str:
        """By what it finds that kubelet uses it, in words; "": it does not, or does not answer.

        Where nobody can read kubelet's words, it goes by the calls that it counted lately.
        """
        try:
            attached = self._status(host)["attached"]
        except NodeError:
            return ""
        if attached["state"] != "yes":
            return ""
        return f"`criproxy status` says that it is attached: {attached['where']}; it looks again each 30 s"

    def offline_pods(self, host: Host) -> Iterator[str]:
        """What the user must know of pods that are in the box still, in lines."""
        try:
            pods = self._status(host)["pods"]
        except NodeError:
            yield "criproxy does not answer: offline pods that run go on, in the box, with its last limits"
            return
        if not pods:
            return
        yield f"{len(pods)} offline pods are in the box still, and go on there:"
        yield from (f"  {pod['namespace']}/{pod['name']}" for pod in pods[:20])
        yield (
            "while criproxy runs, it bounds them on; `colocation.enabled = false` in its config lifts the box's limits "
            '(with on_disable = "evict" it ends them), and a pod that is deleted leaves the box'
        )

    def _status(self, host: Host) -> Any:
        try:
            status = read_json(host.machine.ask(self.status, "/status"))
            return {"nri": status.get("nri"), **{key: kind(status[key]) for key, kind in _STATUS.items()}}
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(f"{self.status} does not answer like criproxy") from error
