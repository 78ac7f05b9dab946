"""What the daemon has to do with Kubernetes: nothing, unless kubernetes.enabled; then `criproxy.kube` is imported.

How it works
------------
The first step is to find out who this node is: kubelet's kubeconfig (of its command line, kubeadm's without one) has a
certificate that names the Node. That is tried again until it succeeds, as kubelet may get it minutes after its start.
From then on `criproxy.kube.node_side` does the work. Nothing waits for it but an eviction, and that for seconds only.

The policy that held last is read from the disk before anything is served, so that it holds from the first call on.

While something on the Node is ours, a mark lies on the disk (`PublishedMark`). Without it, a config file that was lost
would leave the node's numbers to nobody, as Kubernetes is off by default. Who finds errors, Kubernetes not switched
on, and the mark, takes back what the Node still has of ours (`load_first`).
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import Apart
from criproxy.config import Config, Loaded, Override, OwnFiles, load, placed
from criproxy.config.settings import Kubernetes as Settings
from criproxy.control.interference.ladder import Transition
from criproxy.control.pod_speed import Feedback
from criproxy.control.publication import OpenBoxSettings
from criproxy.daemon.footprint import tidy
from criproxy.daemon.lifecycle import run_apart
from criproxy.daemon.upgrade.channel import KubernetesMemory
from criproxy.model import CPU, SHARES_OF_CORE, Decision, GivingBack, PodRef, Snapshot
from criproxy.model.modes import Modes
from criproxy.model.shown import Counter, Gauge, Shows
from criproxy.observe.metrics import Metrics
from criproxy.pods.stopping import BudgetError, KnownPod, RefusedError
from criproxy.pods.words import duration
from criproxy.vocabulary.gives_back import MOST_WAIT_S

if TYPE_CHECKING:
    from criproxy.kube.credential import Credential
    from criproxy.kube.evictions import Eviction
    from criproxy.kube.extended_resources import Offer, PublishSettings
    from criproxy.kube.node_side import NodeSide
    from criproxy.kube.objects import BoundPod
    from criproxy.kube.policy import InForce
    from criproxy.kube.publisher import Publisher

POLICY_FILE: Final = "policy.json"
MARK_FILE: Final = "published.json"
"""Both lie beside the predictor's checkpoint."""

_MOST_MARK_BYTES: Final = 1 << 20
_MARK_S: Final = 10.0
"""What a disk takes to write it; one that hangs costs one thread."""

_MARK_AGAIN_S: Final = 60.0
_CEASED_LOOK_S: Final = 5.0

_BEGIN_S: Final = 2.0
"""The first calls are not to share the interpreter with the imports."""

_AGAIN_S: Final = 10.0

_WITHHELD_RATIO: Final = 0.5
"""Of the time that an eviction may take, how much the publication of the 0 before it may, where nothing is lent."""

_KUBELETS_OWN_S: Final = 15.0
"""How long kubelet needs at most to end a pod, beyond its grace period."""


class Offering(Protocol):
    """Whoever knows what is decided, and which modes are in force: `criproxy.observe.report`."""

    def decided(self) -> tuple[Snapshot, Decision, Modes] | None:
        """None: nothing was, yet, or it is not known whether pods would be bounded."""

    def offline_uids(self) -> frozenset[str]:
        """Of the pods that run in the box."""


class Measures(Protocol):
    """Whoever measures what pods get of the CPU that was published: `criproxy.pods.pod_speeds`."""

    @property
    def feedback(self) -> Feedback:
        """How much of what the hour's forecast leaves is published, by that."""


class PolicyShown(Struct, frozen=True):
    """The cluster's policy that holds above the config file: its `keys`. `problems`: why another one does not."""

    name: str = ""
    version: str = ""
    keys: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class KubernetesStatus(Struct, frozen=True):
    """`node`: this node's name; "": not known yet. `trouble`: what does not work now; "": all does.

    `published`: the amounts by their extended resources' names, `why` they are so, and how old they are (None: nothing
    was published yet).
    """

    node: str = ""
    kubeconfig: str = ""
    trouble: str = ""
    published: Mapping[str, int] = {}
    why: str = ""
    age_s: float | None = None
    policy: PolicyShown = PolicyShown()


class PublishedMark(Struct, frozen=True):
    """By what this node published last: its `[kubernetes]` section, and where the criproxy that did it listens.

    `listen` "": it is not known.
    """

    kubernetes: Settings = Settings()
    listen: str = ""


class KubernetesPart(Shows):
    """The part. `own`: the node's files, which were loaded. `changed` is called when another policy holds; it must not
    block.
    """

    GAUGES = (
        Gauge(
            "kubernetes_published",
            "What was last published of an extended resource",
            lambda now: {} if now is None else now.published,
            "resource",
        ),
        Gauge(
            "kubernetes_published_age_seconds",
            "How old it is; NaN: nothing was published",
            lambda now: None if now is None else now.age_s,
        ),
        Gauge(
            "kubernetes_trouble",
            "Whether something of Kubernetes does not work now: the status says what",
            lambda now: False if now is None else bool(now.trouble),
        ),
    )
    COUNTERS = (
        Counter(
            "kubernetes_evictions",
            "Offline pods that were to be evicted through the API, by what came of it",
            {"outcome": ()},
        ),
    )

    def __init__(
        self,
        own: OwnFiles,
        config: Config,
        changed: Callable[[], None],
        *,
        dry_run: bool,
        metrics: Metrics,
        clock: Clock,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._enabled = _takes_part(config, dry_run=dry_run)
        self._dry_run = dry_run
        self._own = own
        self._policy_file = policy_file(config)
        self._mark_file = mark_file(config)
        self._disk = Apart("kubernetes-mark", _MARK_S)
        self._configured = asyncio.Event()
        self._begun = asyncio.Event()
        """A side is there."""
        self._config = config
        self._listen: Final = config.proxy.listen_path
        """It stays so until a restart, whatever the config says by then."""
        self._changed = changed
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._offering: Offering | None = None
        self._measures: Measures | None = None
        self._side: NodeSide | None = None
        self._before = KubernetesMemory()
        """Of the process before, or of the side before, which has failed."""
        self._evictions: dict[str, asyncio.Task[Eviction]] = {}
        self._trouble = ""
        self._kubeconfig = config.kubernetes.kubeconfig or ""

    # --- settings ---------------------------------------------------------------------------------------------------

    def configure(self, config: Config) -> None:
        """What was wrong with a policy may be right by another file, or the other way round."""
        changed, self._config = config != self._config, config
        self._configured.set()
        if self._side is None:
            return
        if changed:
            self._side.publisher.configure(publish_settings(config.kubernetes))
        if changed or self._side.follower.status().problems:
            self._side.follower.look_again()

    def policy_changed(self) -> None:
        self._changed()

    def load(self, file: Path) -> Loaded:
        """The config with the cluster's policy above it, where its own files switch Kubernetes on.

        Blocks; for any thread.
        """
        if not self._enabled:
            return load(file)
        loaded = self._own.load(self._overrides())
        return loaded if (loaded.instead or loaded.config).kubernetes.enabled else self._own.load()

    def _overrides(self) -> tuple[Override, ...]:
        if self._side is not None:
            return self._side.follower.in_force.overrides
        in_force = _in_force(self._before)
        return remembered(self._config) if in_force is None else in_force.overrides

    # --- over the end of a process ----------------------------------------------------------------------------------

    def memory(self) -> KubernetesMemory:
        """What another process, or another side, goes on by."""
        if self._side is None:
            return self._before
        policy = msgspec.Raw(msgspec.json.encode(self._side.follower.in_force))
        giving_back = self.giving_back()
        is_own = giving_back == self._side.gives_back.now()
        until_s = self._clock.boottime_s() + MOST_WAIT_S if is_own else self._before.until_s
        return KubernetesMemory(policy, giving_back, until_s)

    def go_on_by(self, before: KubernetesMemory) -> None:
        self._before = before

    # --- the part ---------------------------------------------------------------------------------------------------

    async def run(self, offering: Offering, measures: Measures) -> None:
        """Until cancelled; where Kubernetes is not switched on, there is nothing to do."""
        self._offering, self._measures = offering, measures
        if not self._enabled:
            await asyncio.Event().wait()
        try:
            await self._work_on()
        finally:
            for one in self._evictions.values():  # whoever works here next decides anew
                one.cancel()

    async def _work_on(self) -> None:
        while True:
            await self._clock.sleep(_BEGIN_S, slack_s=1.0)
            try:
                await self._work()
            except Exception as error:  # a fault in here must not end the daemon, and all calls with it
                self._trouble = str(error) or type(error).__name__
                self._log.error("kubernetes_failed", error=self._trouble, consequence="begun anew", exc_info=error)
            await self._clock.sleep(_AGAIN_S, slack_s=1.0)

    async def _work(self) -> None:
        credential, node = await self._found()
        from criproxy.kube.node_side import NodeSide

        settings = publish_settings(self._config.kubernetes)
        side = NodeSide(
            credential,
            node,
            self,
            settings,
            files=(self._own, self._policy_file),
            taker=self,
            clock=self._clock,
            log=self._log,
        )
        await side.follower.remember()
        self._before = self.memory()
        if (in_force := _in_force(self._before)) is not None:
            side.follower.in_force = in_force
        self._side = side  # from now on its policy is the one that is loaded
        self._begun.set()
        self._log.info("kubernetes_begun", node=node, kubeconfig=self._kubeconfig)
        async with asyncio.TaskGroup() as tasks:
            if not self._dry_run:
                tasks.create_task(self._keep_mark(side.publisher))
            tasks.create_task(side.run())

    async def _keep_mark(self, publisher: "Publisher") -> None:
        """Until cancelled. It goes when nothing on the Node is ours: by an old one, an error in the config would switch
        Kubernetes on.

        Nothing waits for it: while the config file is there, nobody needs the mark.
        """
        kept: PublishedMark | None = PublishedMark()
        trouble = ""
        while True:
            self._configured.clear()
            settings = self._config.kubernetes
            off = publish_settings(settings).off
            if off and not publisher.ceased:
                await self._clock.sleep(_CEASED_LOOK_S, slack_s=1.0)
                continue
            wanted = None if off else PublishedMark(settings, self._listen)
            if wanted == kept:
                await self._configured.wait()
                continue
            try:
                await self._disk.run("keep the mark", partial(_keep, self._mark_file, wanted))
                kept, trouble = wanted, ""
            except OSError as error:
                if str(error) != trouble:
                    lost = "the numbers would stay if the config file were lost"
                    stays = "errors in the config would switch Kubernetes on at a start"
                    self._log.warning(
                        "mark_not_written",
                        file=str(self._mark_file),
                        error=str(error),
                        consequence=f"{lost if wanted else stays}; tried again",
                    )
                trouble = str(error)
                await self._clock.sleep(_MARK_AGAIN_S, slack_s=5.0)

    async def _found(self) -> "tuple[Credential, str]":
        """The credential, and whose it is."""
        while True:
            try:
                return await run_apart("kubernetes", self._find)
            except Exception as error:  # whatever kubelet's files hold: they may be better soon
                if str(error) != self._trouble:
                    self._log.warning("kubernetes_not_begun", error=str(error), consequence="tried again")
                self._trouble = str(error)
            await self._clock.sleep(_AGAIN_S, slack_s=1.0)

    def _find(self) -> "tuple[Credential, str]":
        """Blocks. Raises CredentialError or OSError."""
        from criproxy.kube.credential import KUBECONFIG, Credential, node_name
        from criproxy.kubelet.process import client

        kubelets, given = client()
        self._kubeconfig = self._config.kubernetes.kubeconfig or kubelets or str(KUBECONFIG)
        credential = Credential(Path(self._kubeconfig))
        name = node_name(credential.access(), given)
        tidy()  # what has read the kubeconfig goes before the others come, which take its place
        import criproxy.kube.node_side  # noqa: F401 - here, in a thread: it takes its time

        tidy()
        self._trouble = ""
        return credential, name

    # --- for the publisher ------------------------------------------------------------------------------------------

    def offer(self) -> "tuple[float, Offer] | None":
        from criproxy.kube.extended_resources import offer

        found = self._offering.decided() if self._offering else None
        if self._offering is None or self._measures is None or found is None:
            return None
        snapshot, decision, modes = found
        pods, factor = self._offering.offline_uids(), self._measures.feedback.factor
        return snapshot.t_s, offer(
            snapshot, decision, modes, publish_settings(self._config.kubernetes), pods=pods, factor=factor
        )

    # --- for whoever has pods leave ---------------------------------------------------------------------------------

    async def known(self, *, within_s: float) -> dict[str, KnownPod]:
        """See `criproxy.pods.stopping.Evicts`. A server that is known to be away is not waited for."""
        if self._side is None or self._side.watch.trouble:
            return {}
        from criproxy.kube.client import RejectedError, UnreachableError
        from criproxy.kube.objects import ObjectError

        try:
            async with asyncio.timeout(within_s):
                pods = await self._side.evictor.pods()
        except (TimeoutError, UnreachableError, RejectedError, ObjectError) as error:
            self._log.info("pods_not_known", reason=str(error) or f"no answer within {within_s:g} s")
            return {}
        return {pod.metadata.uid: self._known(pod) for pod in pods}

    def _known(self, pod: "BoundPod") -> KnownPod:
        return KnownPod(pod.spec.priority, pod.controller.uid if pod.controller else "", self._told_shares(pod))

    def _told_shares(self, pod: "BoundPod") -> int | None:
        """Rounded up. None: what it requests can't be read."""
        from criproxy.kube.extended_resources import cpu_names
        from criproxy.kube.objects import ObjectError, told_cores

        node = self._side.watch.node if self._side is not None else None
        there = (node.status.allocatable if node is not None else None) or {}
        names = cpu_names(publish_settings(self._config.kubernetes).resources, there)
        try:
            return math.ceil(told_cores(pod, names) * SHARES_OF_CORE)
        except ObjectError:
            return None

    async def evict(
        self,
        pod: PodRef,
        why: str,
        *,
        within_s: float,
        grace_s: int | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> float | None:
        """See `criproxy.pods.stopping.Evicts`."""
        if not self._enabled:
            return None
        until_s = asyncio.get_running_loop().time() + within_s
        if self._side is None:  # at a start, what asks for evictions is there before it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._begun.wait()
        if self._side is None:
            return None
        within_s = max(0.0, until_s - asyncio.get_running_loop().time())
        from criproxy.kube.evictions import Outcome

        under_way = self._evictions.get(pod.uid)
        if under_way is None:
            withheld_s = within_s * _WITHHELD_RATIO if grace_s is None else 0.0
            work = _evict(self._side, pod, why, withheld_s=withheld_s, grace_s=grace_s, still=still)
            self._evictions[pod.uid] = under_way = asyncio.create_task(work)
            under_way.add_done_callback(lambda ended: self._eviction_ended(pod.uid, ended))
        # Whoever waits no longer stops the pod, whose controller is to learn all the same where not to place the next.
        ended, _ = await asyncio.wait((under_way,), timeout=within_s)
        if not ended:
            return None
        made = under_way.result()
        if made.outcome is Outcome.BUDGET:
            raise BudgetError(made.message or made.outcome.value)
        if made.outcome in (Outcome.REFUSED, Outcome.WITHDRAWN):
            raise RefusedError(made.message or made.outcome.value)
        return made.grace_s + _KUBELETS_OWN_S if made.outcome is Outcome.EVICTED else None

    def _eviction_ended(self, pod_uid: str, ended: "asyncio.Task[Eviction]") -> None:
        del self._evictions[pod_uid]
        if not ended.cancelled():
            self._metrics.count("kubernetes_evictions", ended.result().outcome.name.lower())

    def giving_back(self) -> GivingBack | None:
        """See `criproxy.pods.control_loop.ControlLoop`. What was promised by the one before counts, too."""
        before = self._before.giving_back if self._clock.boottime_s() < self._before.until_s else None
        if self._side is None:
            return before
        now = self._side.gives_back.now()
        if before is None or (now is None and self._side.gives_back.heard):
            return now
        if now is None:
            return before
        lately = max(now.published_lately_bytes, before.published_lately_bytes)
        return replace(now, published_lately_bytes=lately)

    def promised_cores(self) -> float | None:
        """See `criproxy.pods.stopping.Evicts`."""
        return None if self._side is None else self._side.publisher.published_of(CPU)

    def stopped(self, pod: PodRef, why: str) -> None:
        """See `criproxy.pods.stopping.Evicts`."""
        if self._side is not None:
            self._side.evictor.tell_stopped(pod, why)

    def transition(self, one: Transition) -> None:
        """See `criproxy.pods.shared.TellsLadder`."""
        if self._side is not None:
            self._side.events.transition(one)

    # --- for the reporter -------------------------------------------------------------------------------------------

    def status(self) -> KubernetesStatus | None:
        """None: it is not switched on. For any thread."""
        if not self._enabled:
            return None
        if self._side is None:
            return KubernetesStatus(kubeconfig=self._kubeconfig, trouble=self._trouble or "it begins")
        side = self._side
        published, policy = side.publisher.status(), side.follower.status()
        problems = (
            self._trouble,
            (side.watch.trouble and f"the Node is not watched: {side.watch.trouble}"),
            (published.trouble and f"nothing can be published: {published.trouble}"),
            published.contested,
            policy.trouble,
        )
        return KubernetesStatus(
            node=side.name,
            kubeconfig=self._kubeconfig,
            trouble="; ".join(filter(None, problems)),
            published=published.quantities,
            why=published.why,
            age_s=published.age_s,
            policy=PolicyShown(policy.name, policy.version, policy.keys, policy.problems)
            if self._config.kubernetes.enabled
            else PolicyShown(),
        )

    def why(self) -> str:
        """See `criproxy.observe.report.PublishedBy`."""
        return now.why if (now := self.status()) is not None else ""

    def now(self) -> KubernetesStatus | None:
        return self.status()

    def section(self) -> Mapping[str, Any]:
        return {"kubernetes": self.status()}

    def problems(self) -> Iterator[str]:
        if (now := self.status()) is not None:
            yield from filter(None, (now.trouble and f"Kubernetes: {now.trouble}",))
            yield from (f"the cluster's policy is refused: {problem}" for problem in now.policy.problems)

    def rows(self) -> Iterator[tuple[str, ...]]:
        if (now := self.status()) is None:
            yield "kubernetes", "off"
            return
        lines = []
        if now.age_s is not None:
            amounts = ", ".join(f"{name} {amount}" for name, amount in now.published.items())
            lines.append(f"published {duration(now.age_s)} ago: {amounts or 'nothing'}")
        policy = now.policy
        if policy.keys:
            lines.append(f"policy {policy.name} ({policy.version}) sets {', '.join(policy.keys)}")
        lines += (f"policy refused: {problem}" for problem in policy.problems)
        yield "kubernetes", now.trouble or f"node {now.node}, by {now.kubeconfig}", *lines


async def _evict(
    side: "NodeSide", pod: PodRef, why: str, *, withheld_s: float, grace_s: int | None, still: Callable[[], bool]
) -> "Eviction":
    """`withheld_s`: see `Publisher.withhold`; 0 where online waits for what the pod has."""
    if withheld_s:
        await side.publisher.withhold(withheld_s)
    return await side.evictor.evict_pod(pod, why, grace_period_s=grace_s, still=still)


def policy_file(config: Config) -> Path:
    return Path(config.control.checkpoint).with_name(POLICY_FILE)


def mark_file(config: Config) -> Path:
    return Path(config.control.checkpoint).with_name(MARK_FILE)


def _keep(file: Path, mark: PublishedMark | None) -> None:
    """Blocks. Raises OSError."""
    if mark is None:
        file.unlink(missing_ok=True)
    else:
        statefile.write(file, msgspec.json.encode(mark))


def marked(config: Config) -> PublishedMark | None:
    """None: there is no mark.

    Of one that can't be read, all is at its default: the Node's annotation has the names. Blocks.
    """
    file = mark_file(config)
    if not os.path.lexists(file):
        return None
    try:
        return msgspec.json.decode(statefile.read(file, _MOST_MARK_BYTES), type=PublishedMark)
    except (OSError, ValueError, RecursionError):
        return PublishedMark()


def _takes_part(config: Config, *, dry_run: bool) -> bool:
    """A dry run asks no API server, unless the node has published: nobody bounds new pods now, so that becomes 0.

    Not beside the criproxy that publishes, which can't listen where the dry run does.
    """
    return config.kubernetes.enabled and (not dry_run or _by_this(marked(config), config))


def _by_this(mark: PublishedMark | None, config: Config) -> bool:
    """Whether it is of a criproxy whose place this one has taken."""
    return mark is not None and (not mark.listen or placed(mark.listen) == placed(config.proxy.listen_path))


def _in_force(memory: KubernetesMemory) -> "InForce | None":
    """None: it does not say, or can't be read here."""
    if bytes(memory.policy) == b"null":
        return None
    from criproxy.kube.policy import InForce

    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(memory.policy, type=InForce)
    return None


def remembered(config: Config) -> tuple[Override, ...]:
    """The policies that held last; (): there were none, or they can't be read, which the follower tells. Blocks."""
    file = policy_file(config)
    if not os.path.lexists(file):  # nothing is imported for it
        return ()
    from criproxy.kube.policy import PolicyError, PolicyFile

    try:
        return PolicyFile(file).read().overrides
    except (OSError, PolicyError):
        return ()


def load_first(own: OwnFiles, *, dry_run: bool) -> Loaded:
    """The config at the start: with the policies that held last, where Kubernetes is switched on. Blocks.

    Where the file with that switch may be lost, it is on for a node with the mark, to take back what it publishes. As
    `kubernetes.publish` is off then, names that the Node has from others are left alone, however old the mark is. A
    switch that is said to be off stays so, whatever else is wrong.
    """
    loaded = own.load()
    may_be_lost = loaded.errors and not loaded.config.kubernetes.enabled and "kubernetes.enabled" not in loaded.sure
    if may_be_lost and (mark := marked(loaded.config)) is not None:
        if dry_run and not _by_this(mark, loaded.config):
            return loaded
        kubernetes = replace(mark.kubernetes, enabled=True, publish=False)
        return replace(loaded, config=replace(loaded.config, kubernetes=kubernetes))
    if not _takes_part(loaded.config, dry_run=dry_run):
        return loaded
    overrides = remembered(loaded.config)
    return own.load(overrides) if overrides else loaded


def publish_settings(settings: Settings) -> "PublishSettings":
    from criproxy.kube.extended_resources import PublishSettings
    from criproxy.kube.publisher import resources_of

    off = "" if settings.publish else "kubernetes.publish is false"
    return PublishSettings(
        resources_of(settings),
        OpenBoxSettings(settings.cpu_watermark_ratio, settings.speed_ratio),
        off if settings.enabled else "kubernetes.enabled is false",
    )
