"""A steady load of calls that tells who answers each: criproxy, the runtime past it, or nobody."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import grpc

from integration.lab import cri_client_pb2 as cri
from integration.lab.process import wait_until

By = Literal["criproxy", "runtime", "nobody"]

PATIENT = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
"""gRPC's own pace of redialling: 1 s, then ever slower."""

KUBELET = (
    *PATIENT,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
)
"""Source: kubernetes, pkg/kubelet/cri/remote: baseBackoffDelay, maxBackoffDelay."""

EVERY_S = 0.1

_OFFLINE = {"colocation.criproxy.io/class": "offline"}


@dataclass(frozen=True, slots=True)
class Answer:
    """`at_s`: CLOCK_MONOTONIC when it came."""

    at_s: float
    by: By
    words: str


class Load(threading.Thread):
    """Calls until it is left, one call after the other, over one channel that redials as `options` say.

    The call is the start of an offline pod that has no name: criproxy refuses it in words of its own, the runtime in
    others, and nothing starts; or, where the runtime is none, it takes the call.
    """

    def __init__(self, socket: Path, options: Sequence[tuple[str, object]] = KUBELET, every_s: float = EVERY_S) -> None:
        super().__init__(daemon=True)
        self.answers: list[Answer] = []
        self._every_s = every_s
        self._left = threading.Event()
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=list(options))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()
        self._channel.close()

    def run(self) -> None:
        linux = cri.LinuxPodSandboxConfig(cgroup_parent="nowhere")
        request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(labels=_OFFLINE, linux=linux))
        call = self._channel.unary_unary("/runtime.v1.RuntimeService/RunPodSandbox", _serialize)
        while not self._left.wait(self._every_s):
            try:
                call(request, timeout=30)
            except grpc.RpcError as error:
                self.answers.append(Answer(time.monotonic(), _by(error), f"{error.code().name}: {error.details()}"))
            else:
                self.answers.append(Answer(time.monotonic(), "runtime", "OK"))

    def wait_for(self, by: By, since_s: float, timeout_s: float = 60) -> Answer:
        """The first answer by `by` after `since_s`. Raises LabError when there is none."""

        def found() -> Answer | None:
            return next((answer for answer in self.answers if answer.by == by and answer.at_s >= since_s), None)

        answer = wait_until(found, timeout_s, f"an answer by {by}; the last: {self.answers[-3:]}")
        assert answer is not None
        return answer

    def between(self, from_s: float, to_s: float) -> list[Answer]:
        return [answer for answer in self.answers if from_s <= answer.at_s < to_s]

    def longest_gap_s(self, from_s: float, to_s: float, is_good: Callable[[Answer], bool]) -> float:
        """The longest time in which nobody answered well."""
        good = [answer.at_s for answer in self.between(from_s, to_s) if is_good(answer)]
        return max(after - before for before, after in zip([from_s, *good], [*good, to_s], strict=True))


def answered(answer: Answer) -> bool:
    return answer.by != "nobody"


def _by(error: grpc.RpcError) -> By:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return "nobody"
    return "criproxy" if (error.details() or "").startswith("criproxy refuses") else "runtime"


def _serialize(message: cri.RunPodSandboxRequest) -> bytes:
    return message.SerializeToString()
