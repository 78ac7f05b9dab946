"""An online service's own word on how it fares: what a pod's annotation asks to be looked at, and what an answer means.

The value of colocation.criproxy.io/service-check is one of

    {"http": {"port": 8080, "path": "/p99_ms"}, "threshold": 250, "hold_s": 5}
    {"grpc": {"port": 9000, "service": "shop"}}
    {"exec": {"container": "main", "command": ["cat", "/run/queue"]}, "threshold": 40, "timeout_s": 2}
    {"prometheus": {"query": "queue", "lag_s": 1}, "threshold": 40}

HTTP and gRPC (grpc.health.v1) are asked at the pod's own address alone, and a command runs in the pod's own container:
who may create the pod could do that anyway. A query is one of those that the node's own settings name, and goes to the
server that they name: text of an author's would ask the server for what it likes, at any cost.

With a threshold, the answer begins with a number, which is worse the higher it is; without one, it says yes or no by
its status. What counts is a percentage of the threshold:

    no answer, or one that says no   200
    number and threshold             100 * number / threshold, 0 at least and `MOST_PERCENT` at most
    yes, without a threshold         0

A service that was never well since its start says nothing: it may just be starting. A Prometheus that does not answer,
or has no sample, says nothing of the service either; and what it has is `lag_s` old, as it looks at services by and by.
So no experiment that is over sooner can prove anything by it, and such a query is not asked at all (`unprovable`).

Of all that is known now, one value goes to the detector `service_check`, which opens a case as soon as it is shown one
above its bar: so a service is kept back until it has been high for its own `hold_s`, from answer to answer. The worst
of the others counts.

    at rest         the worst service that is low, or high for its `hold_s`
    a case          the last word of the one that raised the alarm (`accuser`); in an experiment one that was requested
                    since what the box has lost takes effect: an older one would acquit the box whatever the experiment
                    does. None: nothing is known
    convicted       the accuser's, so that no word is ever compared with another's. While the resource rests where it is
                    held, the worst becomes the accuser where the accuser's word is not high and the other's is, the
                    accuser's pod has gone, or its word has not been known for some time

A service that is unwell for a reason of its own, whatever the box does, must not outshout all others for as long as it
is. So one whose word the box was found not to be the cause of is *exempt*: until it is within its threshold again, its
word counts only when it is more than twice as far above the detector's `rest`.

Pure.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from criproxy.control.interference.signals import SignalValue
from criproxy.model import PodRef
from criproxy.vocabulary import names

ANNOTATION: Final = names.SERVICE_CHECK

SERVICE_CHECK: Final = "service_check"
"""The detector's name."""

FAILING_PERCENT: Final = 200.0
MOST_PERCENT: Final = 1000.0

MOST_CHARACTERS: Final = 4096
_NUMBER: Final = re.compile(r"\s*([+-]?\d{1,300}(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?)(?![\w.])", re.ASCII)

Port = Annotated[int, Meta(ge=1, le=65535)]


class HttpCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """A GET of this path; a status of 200 to 399 says yes. Source: kubelet's probes."""

    port: Port
    path: Annotated[str, Meta(pattern=r"\A/[!-~]{0,1023}\Z")] = "/"

    def __str__(self) -> str:
        return f"GET :{self.port}{self.path}"


class GrpcCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """grpc.health.v1.Health/Check; SERVING says yes. Source: gRPC, doc/health-checking.md."""

    port: Port
    service: Annotated[str, Meta(max_length=256)] = ""

    def __str__(self) -> str:
        return f"gRPC health :{self.port} {self.service}".rstrip()


class ExecCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """A command in a container of the pod; exit status 0 says yes. `container` "": the pod has one only."""

    command: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(min_length=1, max_length=64)]
    container: Annotated[str, Meta(max_length=253)] = ""

    def __str__(self) -> str:
        return f"exec {' '.join(self.command)[:80]}"


class PrometheusCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """An instant query, of whose answer the scalar or the first sample counts.

    `query`: its name as the author writes it; in a resolved check, its PromQL. `lag_s` is by how much the answer
    lags behind: the time from one scrape to the next, and the query's range. Source: Prometheus, HTTP API.
    """

    query: Annotated[str, Meta(min_length=1)]
    lag_s: Annotated[float, Meta(ge=0.0, le=300.0)] = 15.0

    def __str__(self) -> str:
        return f"query {self.query[:80]}"

    def of(self, queries: Mapping[str, str], pod: PodRef) -> "PrometheusCheck":
        """With its PromQL: there `$pod` becomes the pod's name, and `$namespace` its namespace. Raises ValueError."""
        if (promql := queries.get(self.query)) is None:
            known = ", ".join(sorted(queries)) or "none"
            raise ValueError(
                f"no query is named {self.query[:80]!r} in interference.queries of this node (there are: {known}); "
                "remedy: name one of these, or have the node's administrator add it"
            )
        return replace(self, query=promql.replace("$pod", pod.name).replace("$namespace", pod.namespace))


class ServiceCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """A request about each `every_s`, with `timeout_s` for its answer. It must be harm for `hold_s` to be an alarm."""

    http: HttpCheck | None = None
    grpc: GrpcCheck | None = None
    exec: ExecCheck | None = None
    prometheus: PrometheusCheck | None = None
    threshold: Annotated[float, Meta(gt=0.0)] | None = None
    hold_s: Annotated[float, Meta(ge=0.0, le=300.0)] = 3.0
    every_s: Annotated[float, Meta(ge=1.0, le=300.0)] = 1.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=5.0)] = 1.0

    @property
    def asked(self) -> HttpCheck | GrpcCheck | ExecCheck | PrometheusCheck:
        found = self.http or self.grpc or self.exec or self.prometheus
        assert found is not None
        return found

    @property
    def lag_s(self) -> float:
        """How old an answer's data may be at the request."""
        return 0.0 if self.prometheus is None else self.prometheus.lag_s


class ServiceAnswer(Struct, frozen=True):
    """An answer: whether it says yes, and its text; why there is none, in `text`, where it says no."""

    well: bool
    text: str


def check_of(annotations: Mapping[str, str], pod: PodRef, queries: Mapping[str, str]) -> ServiceCheck | None:
    """None: the pod asks for none. `queries`: PromQL by the names that a check may use. Raises ValueError, with the
    annotation's name and what is wrong there.
    """
    if (text := annotations.get(ANNOTATION)) is None:
        return None
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
        check = msgspec.json.decode(text, type=ServiceCheck)
        if sum(one is not None for one in (check.http, check.grpc, check.exec, check.prometheus)) != 1:
            raise ValueError("it names not exactly one of http, grpc, exec and prometheus")
        if check.grpc is not None and check.threshold is not None:
            raise ValueError("gRPC's health answers yes or no: leave the threshold out")
        if check.prometheus is not None and check.threshold is None:
            raise ValueError("a query answers with a number: give a threshold")
        return check if check.prometheus is None else replace(check, prometheus=check.prometheus.of(queries, pod))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"annotation {ANNOTATION}: {error}") from error


def unprovable(check: ServiceCheck, measured_s: float) -> str:
    """Why no experiment can prove anything by this check, so that it must open no case; "": one can.

    `measured_s`: for how long the shortest experiment measures, once what the box has lost takes effect.
    """
    if check.lag_s < measured_s:
        return ""
    return (
        f"its answer is up to {check.lag_s:g} s old (lag_s), and an experiment measures for {measured_s:g} s, so it "
        "would prove nothing: it is not asked; remedy: a smaller lag_s, by more frequent scrapes, or a longer "
        "interference.trial_s"
    )


def problem_of(outcome: ServiceAnswer, check: ServiceCheck) -> str:
    """What is wrong with an answer, in words; "": it says yes, and has the number that the check needs."""
    if not outcome.well:
        return outcome.text[:200]
    number = check.threshold is None or _NUMBER.match(outcome.text)
    return "" if number else f"its answer begins with no number: {outcome.text[:80]!r}"


def percent_of(outcome: ServiceAnswer, check: ServiceCheck) -> float:
    """Of its threshold; see above."""
    if not outcome.well:
        return FAILING_PERCENT
    if check.threshold is None:
        return 0.0
    number = _NUMBER.match(outcome.text)
    if number is None:
        return FAILING_PERCENT
    value = 100.0 * float(number[1]) / check.threshold
    return FAILING_PERCENT if math.isnan(value) else min(MOST_PERCENT, max(0.0, value))


def fair_places(owners: Mapping[str, tuple[str, str]], most: int) -> frozenset[str]:
    """Which services to check, of more than can be checked: of each namespace as many as of any other, and within it
    of each owner. `owners`: namespace and owner of each, the first to come first.

    So who starts many pods with checks takes no place from another.
    """
    turns: dict[str, tuple[int, int]] = {}
    of_owner, of_namespace = dict[tuple[str, str], int](), dict[str, list[tuple[int, str]]]()
    for id, whose in owners.items():
        turn = of_owner[whose] = of_owner.get(whose, 0) + 1
        of_namespace.setdefault(whose[0], []).append((turn, id))
    for several in of_namespace.values():
        for place, (turn, id) in enumerate(sorted(several, key=lambda one: one[0])):
            turns[id] = place, turn
    return frozenset(sorted(owners, key=lambda id: turns[id])[:most])


# --- from services to one signal --------------------------------------------------------------------------------------


class ServiceSignal(Struct, frozen=True):
    """The last word of one service: `percent` of its `threshold` (None: it says yes or no).

    `asked_s` (boottime) is when the request began, less the check's `lag_s`: what happened since then may not be in it,
    however late the answer came. It is harm above 100, and an alarm when it has been for `hold_s`.
    """

    pod: PodRef
    percent: float
    threshold: float | None
    hold_s: float
    asked_s: float


class ServiceRecord(Struct, frozen=True):
    """What is known of services from look to look. Pods are named by their UIDs.

    `high_since_s`: the pods whose word is high, and since when (boottime). `accuser`: the pod whose word was shown last
    before a case began; "": none was. `silent_since_s`: since when its word has not been known after a conviction
    (boottime); None: it is known. `said_by`: the pod whose word was shown last, in a case or not; "": none was.
    `exempt`: the pods that are exempt, and up to which percentage the word of each does not count.
    """

    high_since_s: Mapping[str, float] = {}
    accuser: str = ""
    silent_since_s: float | None = None
    said_by: str = ""
    exempt: Mapping[str, float] = {}


def recorded(signals: Sequence[ServiceSignal], before: ServiceRecord, bar: float, level: float) -> ServiceRecord:
    """What is recorded after these signals. A service becomes high above the bar, and stays so down to the level."""
    since = {
        one.pod.uid: before.high_since_s.get(one.pod.uid, one.asked_s)
        for one in signals
        if one.percent > bar or (one.percent >= level and one.pod.uid in before.high_since_s)
    }
    unwell = {one.pod.uid for one in signals if one.percent > 100.0}
    still = {uid: percent for uid, percent in before.exempt.items() if uid in unwell}
    return replace(before, high_since_s=since, exempt=still)


def at_rest(signals: Sequence[ServiceSignal], record: ServiceRecord) -> tuple[SignalValue, ServiceRecord]:
    """The word that is shown while nothing is tried nor convicted; whose it is becomes the accuser."""
    count = _that_count(signals, record)
    waiting = [one for one in count if one.asked_s - record.high_since_s.get(one.pod.uid, -math.inf) < one.hold_s]
    known = [one for one in count if one not in waiting]
    if known:
        worst = max(known, key=_percent)
        uid = worst.pod.uid
        return _word_of(worst), replace(record, accuser=uid, silent_since_s=None, said_by=uid)
    if not waiting:
        return _all_exempt(signals), record
    one = max(waiting, key=_percent)
    gap = f"{one.pod} says {one.percent:.0f} %, and not for {one.hold_s:g} s yet"
    return SignalValue(SERVICE_CHECK, "%", gap=gap), record


def in_a_case(
    signals: Sequence[ServiceSignal], record: ServiceRecord, since_s: float | None
) -> tuple[SignalValue, ServiceRecord]:
    """What the accuser says when asked after `since_s` (boottime); None: at all, as no experiment is made now."""
    word = next((one for one in signals if one.pod.uid == record.accuser), None)
    if word is None:
        return SignalValue(SERVICE_CHECK, "%", gap="the service that raised the alarm is not known any more"), record
    if since_s is not None and word.asked_s < since_s:
        return SignalValue(SERVICE_CHECK, "%", gap=f"{word.pod} has not answered since the experiment began"), record
    return _word_of(word), replace(record, said_by=word.pod.uid)


def with_accuser(
    signals: Sequence[ServiceSignal], record: ServiceRecord, online: Container[str], now_s: float, lost_s: float
) -> ServiceRecord:
    """After a conviction: where the accuser is well and another is not, the accuser's pod is not `online` any more, or
    it has not been heard for `lost_s`, the worst takes its place. `now_s`: boottime.
    """
    if any(one.pod.uid == record.accuser for one in signals):
        high = {one.pod.uid: one.percent for one in _that_count(signals, record) if one.pod.uid in record.high_since_s}
        accuser = record.accuser if record.accuser in high or not high else max(high, key=lambda uid: high[uid])
        return replace(record, accuser=accuser, silent_since_s=None)
    since_s = now_s if record.silent_since_s is None else record.silent_since_s
    count = _that_count(signals, record)
    if not count or (record.accuser in online and now_s - since_s < lost_s):
        return replace(record, silent_since_s=since_s)
    return replace(record, accuser=max(count, key=_percent).pod.uid, silent_since_s=None)


def exempt(signals: Sequence[ServiceSignal], record: ServiceRecord, rest: float) -> ServiceRecord:
    """The box was found not to be the cause of the word that was shown last. `rest`: the detector's."""
    found = {one.pod.uid: rest + 2.0 * (one.percent - rest) for one in signals if one.pod.uid == record.said_by}
    return replace(record, exempt={**record.exempt, **found})


def _that_count(signals: Sequence[ServiceSignal], record: ServiceRecord) -> list[ServiceSignal]:
    return [one for one in signals if one.percent > record.exempt.get(one.pod.uid, -math.inf)]


def _all_exempt(signals: Sequence[ServiceSignal]) -> SignalValue:
    one = max(signals, key=_percent)
    gap = f"{one.pod} says {one.percent:.0f} %, and the box was found not to be the cause"
    return SignalValue(SERVICE_CHECK, "%", gap=gap)


def _word_of(one: ServiceSignal) -> SignalValue:
    return SignalValue(SERVICE_CHECK, "%", one.percent, one.percent, note=f"said by {one.pod}")


def _percent(one: ServiceSignal) -> float:
    return one.percent
