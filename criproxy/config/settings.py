"""The settings as types: every key's default, unit and bound, once."""

import posixpath
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from criproxy.control.schedule import DAY_NAMES, Window, WindowMode
from criproxy.hooks import HookSettings
from criproxy.hooks.bandwidth import LEAST_BITS_PER_S, MOST_BITS_PER_S, Bandwidth
from criproxy.hooks.hardening import Hardening
from criproxy.hooks.offline import DEFAULT_RULE, PRESETS, OfflineRules, Rule, Subject, Test
from criproxy.vocabulary.presets import MARKS, NAMES
from criproxy.vocabulary.unboundable import CAPABILITIES, FOLDER, HOST_PATHS, WRITABLE_HOST_PATHS, plain

if TYPE_CHECKING:  # a type checker knows no Literal that is computed
    MarksName = str
    ResourcesName = str
else:
    MarksName = Literal[tuple(MARKS)]
    ResourcesName = Literal[tuple(NAMES)]

_SOCKET: Final = r"^(unix://)?/[^\x00]*[^\x00/]$"
_PATH: Final = r"^/[^\x00]*[^\x00/]$"
_ADDRESS: Final = r"^([0-9.]+|localhost|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$"
_TIME: Final = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_RESOURCE: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""Source: Kubernetes, "Label names and syntax" (qualified names)."""

_DAY: Final = f"({'|'.join(DAY_NAMES)})"
_DAYS: Final = f"^{_DAY}(-{_DAY})?(,{_DAY}(-{_DAY})?)*$"


Socket = Annotated[
    str, Meta(pattern=_SOCKET, extra={"expects": "an absolute path of a socket (/path or unix:///path)"})
]
Cores = Annotated[float, Meta(ge=0.01, le=4096.0)]
ByteCount = Annotated[int, Meta(ge=4 << 20, le=1 << 44)]


def doc(description: str, **extra: str | bool) -> Meta:
    """What a key is for. `expects`: valid values in words, `example`: of an item, `restart`: a change waits for one."""
    return Meta(description=description, extra=extra)


class Proxy(Struct, frozen=True, kw_only=True):
    """Where kubelet finds criproxy, and where criproxy finds the runtime."""

    listen: Annotated[Socket, doc("The socket for kubelet's --container-runtime-endpoint.", restart=True)] = (
        "/run/criproxy/criproxy.sock"
    )
    runtime: Annotated[Socket, doc("The container runtime's own socket.", restart=True)] = (
        "/run/containerd/containerd.sock"
    )
    front: Annotated[
        Literal["cri", "nri"],
        doc(
            "How criproxy hears of pods. cri: kubelet's calls go through it, which bounds all. nri: the runtime calls "
            "it, for nodes whose kubelet can't be attached (`criproxy attach` is refused then); docs/nri.md says what "
            "that bounds. Let offline pods end before it changes.",
            restart=True,
        ),
    ] = "cri"
    nri: Annotated[Socket, doc('With front = "nri", the runtime\'s socket for its plugins.', restart=True)] = (
        "/var/run/nri/nri.sock"
    )
    engine: Annotated[
        Literal["grpc", "relay"],
        doc(
            "What carries the calls. relay forwards HTTP/2 frames and opens the calls alone that hooks "
            "name: it costs less, and an upgrade fails no call. grpc ends each call and makes it anew.",
            restart=True,
        ),
    ] = "relay"
    bypass_after_s: Annotated[
        Annotated[float, Meta(ge=1.0, le=3600.0)] | Literal["never"],
        doc(
            "When criproxy has been down for this many seconds, kubelet's calls go to the runtime past it, "
            "until it is back; offline pods that start meanwhile are not bounded (see colocation.on_unbounded). "
            "After 30 seconds without a runtime, kubelet starts and stops no pods.",
            expects='a number from 1 to 3_600, or "never"',
        ),
    ] = 10.0

    @property
    def bypass(self) -> float | None:
        """`bypass_after_s`, None for never."""
        return self.bypass_after_s if isinstance(self.bypass_after_s, (int, float)) else None

    @property
    def listen_path(self) -> str:
        """`listen` without its scheme, normalised."""
        return _socket_path(self.listen)

    @property
    def status_path(self) -> str:
        """The socket at which `criproxy status` asks, beside the one of `listen`: criproxy-status.sock."""
        stem, suffix = posixpath.splitext(self.listen_path)
        return f"{stem}-status{suffix}"

    @property
    def runtime_path(self) -> str:
        """`runtime` without its scheme, normalised."""
        return _socket_path(self.runtime)

    @property
    def nri_path(self) -> str:
        """`nri` without its scheme, normalised."""
        return _socket_path(self.nri)


class Kubelet(Struct, frozen=True, kw_only=True):
    """What is read of kubelet's own state: the CPUs that its static CPU manager leaves to offline pods."""

    root_dir: Annotated[
        str,
        Meta(pattern=_PATH),
        doc(
            "Kubelet's --root-dir, which holds its cpu_manager_state: of k0s /var/lib/k0s/kubelet, of MicroK8s "
            "/var/snap/microk8s/common/var/lib/kubelet.",
            expects="an absolute path of a directory",
            restart=True,
        ),
    ] = "/var/lib/kubelet"


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is written: exactly one subject (label, annotation, namespace) and one test.

    What must hold between its keys, docs/policy_schema.py says to API servers, too.
    """

    label: Annotated[str, Meta(min_length=1)] | None = None
    annotation: Annotated[str, Meta(min_length=1)] | None = None
    namespace: bool = False
    equals: str | None = None
    prefix: Annotated[str, Meta(min_length=1)] | None = None
    present: bool = False

    def __post_init__(self) -> None:
        subjects = [self.label is not None, self.annotation is not None, self.namespace]
        if sum(subjects) != 1:
            raise ValueError('needs exactly one of label = "key", annotation = "key" and namespace = true')
        if sum([self.equals is not None, self.prefix is not None, self.present]) != 1:
            raise ValueError('needs exactly one of equals = "value", prefix = "start" and present = true')
        if self.namespace and self.present:
            raise ValueError("would make every pod offline: give namespace = true an equals or a prefix")

    @property
    def rule(self) -> Rule:
        named = Subject.LABEL if self.label is not None else Subject.ANNOTATION
        test = Test.PRESENT if self.present else Test.EQUALS if self.prefix is None else Test.PREFIX
        key, value = self.label or self.annotation or "", self.prefix or self.equals or ""
        return Rule(Subject.NAMESPACE if self.namespace else named, key, test, value)


class Colocation(Struct, frozen=True, kw_only=True):
    """The node's switch, and which pods are offline."""

    enabled: Annotated[bool, doc("The node's switch. While it is off, offline pods start as ordinary ones.")] = False
    on_disable: Annotated[
        Literal["release", "evict"],
        doc(
            "What becomes of running offline pods when the switch goes off: the box's limits are lifted "
            "(release), or the pods are stopped (evict)."
        ),
    ] = "release"
    on_unbounded: Annotated[
        Literal["report", "evict"],
        doc(
            "What becomes of a running offline pod that is found outside the box (the runtime put it "
            "elsewhere, somebody moved it or a process of it, or it started while criproxy was bypassed), or runs in "
            "real time where that can't be kept from it (NRI): the log, the metrics and `criproxy status` show it "
            "(report), or it is stopped as well, so that it starts anew (evict)."
        ),
    ] = "report"
    on_runtime_overload: Annotated[
        Literal["report", "evict"],
        doc(
            "What becomes of the offline pod for which the runtime works most, outside the box, when that "
            "is too much for a minute (a pod that prints without end): the log, the metrics and `criproxy "
            "status` show it (report), or it is stopped as well (evict)."
        ),
    ] = "report"
    runtime_max_cores: Annotated[
        Cores,
        doc(
            "Too much is what the runtime and the shims of offline pods take over this, while those pods' "
            "logs grow by 1 MB/s or more, or when their shims alone take it."
        ),
    ] = 0.25
    tiers: Annotated[
        bool,
        doc(
            "Offline pods are in two tiers: mid ones (label colocation.criproxy.io/tier = mid, or koordinator.sh/"
            "priority-class = koord-mid) get CPU and, on cgroup v2, keep memory before all others, and go after those "
            "of the same priority."
        ),
    ] = False
    presets: Annotated[
        tuple[MarksName, ...],
        doc(
            "Other systems' marks of offline pods, taken in addition to the rules. Those that are annotations mark no "
            "pod of kube-system and criproxy-system."
        ),
    ] = ()
    rules: Annotated[
        tuple[RuleTable, ...],
        doc(
            "A pod is offline when any rule matches. A rule has one subject (label, annotation, or "
            "namespace = true) and one test (equals, prefix, or present = true). Static pods of kube-system never are.",
            expects="a list of tables, each with one subject and one test",
            example='{ label = "key", equals = "value" }',
        ),
    ] = (RuleTable(label=DEFAULT_RULE.key, equals=DEFAULT_RULE.value),)

    def offline_rules(self) -> OfflineRules:
        chosen: dict[str, tuple[Rule, ...]] = {name: PRESETS[name] for name in self.presets}
        return OfflineRules(tuple(table.rule for table in self.rules), chosen)


class Cpu(Struct, frozen=True, kw_only=True):
    """The box's limit: capacity x watermark - predicted online usage - reserve, within min and max; see `bound`."""

    watermark_ratio: Annotated[
        float, Meta(ge=0.1, le=1.0), doc("The share of the node's CPUs that online and offline may fill.")
    ] = 0.9
    min_cores: Annotated[Cores, doc("Offline pods keep this much, however busy the node is.")] = 0.1
    max_cores: Annotated[Cores, doc("Offline pods never get more. Not set: no such bound.")] | None = None
    reserve_cores: Annotated[
        float,
        Meta(ge=0.0, le=4096.0),
        doc("Offline pods never get this much of the node, but for min_cores."),
    ] = 0.0
    bound: Annotated[
        Literal["prediction", "evidence"],
        doc(
            "What bounds the box while nobody is harmed: what online is predicted to use (prediction), or, where the "
            "kernel has cpu.idle and a signal for CPU is at work, all of the node less the reserve, until there is "
            "evidence of harm (evidence). Once the box is found to harm online, the prediction holds, and then less."
        ),
    ] = "evidence"
    static_cores: Annotated[Cores, doc('The limit under control.policy = "static".')] | None = None


class Memory(Struct, frozen=True, kw_only=True):
    """The box's memory limit, by the same law."""

    watermark_ratio: Annotated[
        float, Meta(ge=0.1, le=1.0), doc("The share of the node's memory that online and offline may fill.")
    ] = 0.9
    min_bytes: Annotated[
        ByteCount,
        doc(
            "Offline pods keep this much, however full the node is; what of it is above 128 MiB gives way before "
            "kubelet would evict online pods."
        ),
    ] = 128 << 20
    max_bytes: Annotated[ByteCount, doc("Offline pods never get more. Not set: no such bound.")] | None = None
    reserve_bytes: Annotated[
        int, Meta(ge=0, le=1 << 44), doc("Offline pods never get this much of the node, but for min_bytes.")
    ] = 0
    static_bytes: Annotated[ByteCount, doc('The limit under control.policy = "static".')] | None = None
    on_over_limit: Annotated[
        Literal["evict", "report"],
        doc(
            "When the node's free memory is half-way to where kubelet evicts pods (its evictionHard or "
            "evictionSoft; online ones first, as it counts offline ones as 0) and the box is above its limit, as it "
            "can't be reclaimed: one offline pod after the other is stopped until that is over, within the numbers of "
            "[interference] (evict), or it is only reported (report). So they are when the box's anonymous memory "
            "alone is more than 2 % above its limit for interference.evict_after_memory_s, unless that limit is "
            "min_bytes."
        ),
    ] = "evict"
    proactive_reclaim: Annotated[
        bool,
        doc(
            "Take back memory that offline pods don't use, page cache above all, while nobody is short of it: up to 1 "
            "% of theirs each 6 seconds, less or nothing as soon as they wait for memory. Cgroup v2, Linux 5.19."
        ),
    ] = False


class Cpuset(Struct, frozen=True, kw_only=True):
    """Which CPUs the box runs on, beside what kubelet's static CPU manager leaves to it."""

    whole_cores: Annotated[
        bool,
        doc(
            "Offline pods run on whole physical cores alone, as many as the CPU limit needs, so that none is the "
            "hyperthread beside an online pod's. Without hyperthreads, nothing changes."
        ),
    ] = False
    pin_pods: Annotated[
        bool,
        doc(
            "An offline pod with a CPU limit stays on as many CPUs as that limit, rounded up. The kernel then does not "
            "move its tasks about, which makes online pods wait. Each few seconds, a pod that waits moves to where it "
            "gets more, or gets one CPU more where that is idle."
        ),
    ] = True


class Cache(Struct, frozen=True, kw_only=True):
    """What offline pods may have of caches and memory bandwidth, where the processor can bound it (resctrl)."""

    llc_max_ratio: (
        Annotated[
            float,
            Meta(ge=0.01, le=1.0),
            doc(
                "Offline pods never have more than this share of each last-level cache (L3), in whole parts as the "
                "processor has them. Not set: no such bound. resctrl must be mounted."
            ),
        ]
        | None
    ) = None
    bandwidth_max_ratio: (
        Annotated[
            float,
            Meta(ge=0.01, le=1.0),
            doc("The same of memory bandwidth (MBA), about: the processor slows down what asks for more."),
        ]
        | None
    ) = None


class Pids(Struct, frozen=True, kw_only=True):
    """The box's limit on processes and threads."""

    max_ratio: Annotated[
        float,
        Meta(ge=0.001, le=1.0),
        doc(
            "Offline pods together never have more than this share of the processes and threads that the "
            "node can have (the least of kernel.pid_max, kernel.threads-max and what kubelet leaves to pods), so that "
            "a fork bomb in one leaves the rest to online pods. Beside it, each pod has kubelet's podPidsLimit."
        ),
    ] = 0.33


class Io(Struct, frozen=True, kw_only=True):
    """What keeps disks to the box's weight, which is the lowest."""

    weight: Annotated[
        Literal["leave", "io.cost", "bfq"],
        doc(
            "What is switched on for each disk of the node: the kernel's io.cost (cgroup v2), the scheduler bfq, or "
            "nothing (leave): then the weight is in force where something keeps to it already. It is the whole disk's, "
            "so measure what it costs online. What was switched on is switched off when this is taken back."
        ),
    ] = "leave"


_BitsPerS = Annotated[int, Meta(ge=LEAST_BITS_PER_S, le=MOST_BITS_PER_S)]


class Network(Struct, frozen=True, kw_only=True):
    """The most that each offline pod gets of the network, as far as the node's CNI plugin `bandwidth` keeps to it."""

    max_egress_bits_per_s: (
        Annotated[
            _BitsPerS,
            doc(
                "From a pod: set as its annotation kubernetes.io/egress-bandwidth when it starts, unless it asks for "
                "less itself. Not set: no such bound."
            ),
        ]
        | None
    ) = None
    max_ingress_bits_per_s: (
        Annotated[_BitsPerS, doc("To a pod: its annotation kubernetes.io/ingress-bandwidth. Not set: no such bound.")]
        | None
    ) = None


_Capability = Annotated[str, Meta(pattern=r"^[A-Za-z_]{1,40}$")]
_FILE: Final = "an absolute path"
_AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\x00]*$")]
_Folder = Annotated[str, Meta(pattern=FOLDER)]
_FOLDERS: Final = "a list of absolute paths; a * may stand at the end of a name alone"


class HardeningTable(Struct, frozen=True, kw_only=True):
    """What no cgroup bounds and is kept from offline pods therefore: see docs/refused.md, What may leave the box."""

    seccomp: Annotated[
        bool,
        doc(
            "Offline containers without a seccomp profile, or with Unconfined, get the runtime's (RuntimeDefault): "
            "without one, a pod can use up the kernel's keys, and no container starts on the node any more."
        ),
    ] = True
    capabilities: Annotated[
        tuple[_Capability, ...],
        doc(
            "What offline containers may add; the rest of what they ask for is cut. ALL: nothing is cut but SYS_NICE, "
            "by which a thread runs in real time.",
            expects="a list of capabilities, such as NET_RAW",
        ),
    ] = CAPABILITIES
    refuse_privileged: Annotated[
        bool,
        doc("Whether an offline pod with a privileged container, or from a checkpoint (RestorePod), is refused."),
    ] = True
    refuse_host_namespaces: Annotated[
        tuple[Literal["network", "pid", "ipc"], ...],
        doc("An offline pod with any of these of the node's namespaces (hostNetwork, hostPID, hostIPC) is refused."),
    ] = ("network", "pid", "ipc")
    refuse_host_paths: Annotated[
        tuple[_Folder, ...],
        doc(
            "An offline container with a hostPath volume of one of these, in one, or above one is refused, also where "
            "a link or a bind mount leads there; unless the list is empty, kubelet.root_dir and the folders of "
            "proxy.runtime and proxy.listen are in it. Kubelet's own volumes for the pod always pass.",
            expects=_FOLDERS,
        ),
    ] = HOST_PATHS
    writable_host_paths: Annotated[
        tuple[_Folder, ...],
        doc(
            "Folders for jobs' data. An offline container with a hostPath volume that is not mounted read-only, and "
            "is not one of these nor in one, wherever it leads, is refused: the node may run what is there. A name "
            'that ends with * stands for all that begin so. ["/"] lends all but refuse_host_paths.',
            expects=_FOLDERS,
        ),
    ] = WRITABLE_HOST_PATHS
    refuse_host_ports: Annotated[
        bool,
        doc("Whether an offline pod with a hostPort is refused: the node's port, kubelet's too, would lead to it."),
    ] = True
    proc_mount: Annotated[
        bool,
        doc(
            "Offline containers with procMount: Unmasked, and without a user namespace of their own, get Default: "
            "root in one could write the settings of the node's kernel."
        ),
    ] = True
    cache_classes: Annotated[
        bool,
        doc(
            "Whether annotations rdt.resources.beta.kubernetes.io/… of offline pods are taken away: by one, a "
            "container chooses a class of the runtime's for the last level's cache, which may be that of online pods. "
            "So are those by which nri-plugins give a class, a balloon, or isolated or reserved CPUs "
            "(scheduling-class.resource-policy.nri.io and its like)."
        ),
    ] = True
    allow: Annotated[
        tuple[RuleTable, ...],
        doc(
            "Pods that pass all of this, by rules as those of colocation.rules. Whoever may create a pod may give it "
            "any label, so a namespace is the better rule.",
            expects="a list of tables, each with one subject and one test",
            example='{ namespace = true, equals = "gpu-drivers" }',
        ),
    ] = ()
    verified_only: Annotated[
        bool,
        doc(
            "Whether an offline container whose cgroup can't be known (a runtime of virtual machines) is a problem in "
            "the status, and not only a number."
        ),
    ] = False

    def of_hooks(self) -> Hardening:
        capabilities = frozenset(map(plain, self.capabilities))
        return Hardening(
            self.seccomp,
            capabilities,
            self.refuse_privileged,
            frozenset(self.refuse_host_namespaces),
            self.refuse_host_paths,
            self.writable_host_paths,
            self.refuse_host_ports,
            self.proc_mount,
            self.cache_classes,
            tuple(table.rule for table in self.allow),
        )


class Control(Struct, frozen=True, kw_only=True):
    """The loop that measures, predicts and sets the box's limits."""

    interval_s: Annotated[float, Meta(ge=0.1, le=60.0), doc("Seconds from one decision to the next.")] = 1.0
    policy: Annotated[
        Literal["dynamic", "static", "schedule"],
        doc(
            "Limits from the prediction (dynamic), cpu.static_cores and memory.static_bytes (static), or "
            "either or none, by the time of the week (schedule, see below)."
        ),
    ] = "dynamic"
    predictor: Annotated[
        Literal["histogram", "calibrated"],
        doc(
            "A percentile of the recent past (histogram), or one with a margin learned from its own errors "
            "(calibrated)."
        ),
    ] = "calibrated"
    half_life_s: Annotated[
        float, Meta(ge=0.1, le=604800.0), doc("Seconds after which a sample counts half as much.")
    ] = 900.0
    percentile: Annotated[
        float, Meta(ge=0.5, le=0.999), doc("The percentile, by area, of past online usage that is predicted.")
    ] = 0.9
    raise_threshold_ratio: Annotated[
        float, Meta(ge=0.0, le=1.0), doc("A limit is raised at once by this share of capacity or more.")
    ] = 0.05
    raise_after_s: Annotated[
        float, Meta(ge=0.0, le=3600.0), doc("A smaller raise waits this many seconds. Lowering never waits.")
    ] = 60.0
    max_raise_ratio: Annotated[
        float,
        Meta(ge=0.001, le=1.0),
        doc(
            "A limit is raised by at most this share of capacity per decision, so that each next decision "
            "sees what the last one did to online. What was taken for harm is given back at once, so that a probe sees "
            "what all of it does."
        ),
    ] = 0.1
    checkpoint: Annotated[
        str,
        Meta(pattern=_PATH),
        doc("Where the predictor's memory survives a restart.", expects="an absolute path of a file", restart=True),
    ] = "/var/lib/criproxy/predictor.json"


class WindowTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A window as it is written. `cores` and `bytes`: its limits when it is static.

    What must hold between its keys, docs/policy_schema.py says to API servers, too.
    """

    days: Annotated[str, Meta(pattern=_DAYS)] = "mon-sun"
    start: Annotated[str, Meta(pattern=_TIME)]
    end: Annotated[str, Meta(pattern=_TIME)]
    policy: WindowMode
    cores: Cores | None = None
    bytes: ByteCount | None = None

    def __post_init__(self) -> None:
        if self.policy != "static" and (self.cores is not None or self.bytes is not None):
            raise ValueError(f'has limits of its own, which only policy = "static" uses, not "{self.policy}"')
        _ = self.window

    @property
    def window(self) -> Window:
        """Raises ValueError."""
        name = f"{self.days} {self.start}-{self.end}"
        return Window(name, _days(self.days), _minute(self.start), _minute(self.end), self.policy)


class Schedule(Struct, frozen=True, kw_only=True):
    """Time windows, for control.policy = "schedule"."""

    time_zone: Annotated[
        str,
        doc(
            "The clock that windows go by, daylight saving included.",
            expects='a name of the time zone database, such as "Europe/Berlin"',
        ),
    ] = "UTC"
    windows: Annotated[
        tuple[WindowTable, ...],
        Meta(max_length=32),
        doc(
            "On days (not set: every day) from start to end, or into the next day, policy holds: dynamic, "
            "static (with cores and bytes, or cpu.static_cores and memory.static_bytes) or off. Of windows that "
            "overlap, the first.",
            expects="a list of at most 32 tables",
            example='{ days = "mon-fri", start = "22:00", end = "06:00", policy = "dynamic" }',
        ),
    ] = ()
    outside: Annotated[WindowMode, doc("What holds outside of all windows.")] = "off"
    grace_s: Annotated[
        float,
        Meta(ge=0.0, le=86400.0),
        doc(
            "So long before the schedule turns off, new offline pods are refused already (kubelet tries "
            "again), and as long as it is off."
        ),
    ] = 300.0
    on_close: Annotated[
        Literal["evict", "squeeze"],
        doc(
            "What becomes of running offline pods when the schedule turns off: they are stopped, and start "
            "again when it is on (evict), or stay with cpu.min_cores and what memory can't be reclaimed (squeeze)."
        ),
    ] = "evict"

    @property
    def zone(self) -> tzinfo:
        """Read anew each time, as an update of tzdata may change it.

        Raises KeyError, ValueError or OSError when there is no such zone.
        """
        if self.time_zone == "UTC":
            return UTC
        from zoneinfo import ZoneInfo

        return ZoneInfo.no_cache(self.time_zone)


class Guard(Struct, frozen=True, kw_only=True):
    """Squeezes the box between two decisions, as soon as online takes more CPU than was predicted or waits for it."""

    enabled: Annotated[bool, doc("Off: the box's limits change with the decisions only.")] = True
    hold_s: Annotated[
        float, Meta(ge=0.0, le=600.0), doc("Seconds for which a squeeze holds, before the CPU is given back by steps.")
    ] = 2.0


_Seconds = Annotated[float, Meta(ge=1.0, le=3600.0)]


class QueryTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query that online pods' checks may name."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
    promql: Annotated[str, Meta(min_length=1, max_length=2048)]


class Interference(Struct, frozen=True, kw_only=True):
    """What is done when online pods are harmed: the cause is tried out, then answered step by step, and given back."""

    enabled: Annotated[
        bool,
        doc(
            "Whether the kernel is asked how long online pods wait for CPU, memory and disks. Off: the node's memory "
            "alone is answered, its shortage and a box that can't be reclaimed (memory.on_over_limit)."
        ),
    ] = True
    cpi: Annotated[
        bool,
        doc(
            "Whether the processor counts the cycles and instructions of online pods, so that a service that is slowed "
            "down by caches, memory bandwidth or hyperthreads is seen. Needs hardware counters, and permissions that "
            "the service does not have by itself: docs/harm.md, Cycles per instruction."
        ),
    ] = False
    on_harm: Annotated[
        Literal["evict", "close"],
        doc(
            "How far it goes when the box was found to harm online pods and a squeeze does not end that: offline pods "
            "are stopped, one after the other (evict), or only no new ones are let in (close)."
        ),
    ] = "evict"
    prometheus: (
        Annotated[
            str,
            Meta(pattern=_ADDRESS),
            doc(
                "The Prometheus that online pods' checks may send queries to (docs/harm.md, What online services say "
                "of themselves), by HTTP. Not set: such a check says nothing.",
                expects="an IP address with a port, such as 10.96.0.20:9090 or [fd00::20]:9090",
                restart=True,
            ),
        ]
        | None
    ) = None
    queries: Annotated[
        tuple[QueryTable, ...],
        Meta(max_length=64),
        doc(
            "What such checks may ask it, by name. Authors of pods write the name alone. In the PromQL, $pod and "
            "$namespace are the pod's own. Only this file has them: no ColocationPolicy may.",
            expects="a list of at most 64 tables",
            example="""{ name = "queue", promql = "max(queue_length{pod='$pod'})" }""",
        ),
    ] = ()
    trial_s: Annotated[
        float,
        Meta(ge=2.0, le=30.0),
        doc(
            "The fewest seconds of a phase of an experiment (squeeze, give back, squeeze again) for what online "
            "services say of themselves, which comes about a second apart; a phase takes up to twice as long, at "
            "random. For the kernel's signals a phase takes 1 to 2 s, of memory 10 to 12."
        ),
    ] = 3.0
    give_back_after_most_s: Annotated[
        float,
        Meta(ge=5.0, le=3600.0),
        doc(
            "A resource that is held is given back for a moment, to see whether the harm comes back: after 5 s of "
            "calm, then 10, 20 and so on up to this many. Longer: a guilty box harms online less, about 2 s each time, "
            "and an innocent one, or one that has stopped harming, is given back later."
        ),
    ] = 90.0
    close_after_s: Annotated[
        _Seconds,
        doc("Seconds of harm by the box, although it is at its floor, after which it takes no new offline pod."),
    ] = 10.0
    open_after_s: Annotated[
        _Seconds, doc("Seconds of calm after which it does again; each time twice as long, up to ten minutes.")
    ] = 60.0
    evict_after_s: Annotated[
        _Seconds, doc("Seconds of further harm, but for a shortage of memory, after which a closed box loses a pod.")
    ] = 120.0
    evict_after_memory_s: Annotated[
        _Seconds, doc("The same for a shortage of memory. When it is nearly gone, nothing waits.")
    ] = 5.0
    evict_most: Annotated[
        int,
        Meta(ge=1, le=100),
        doc(
            "Never more pods than this are stopped in ten minutes, whatever is measured; two of them (of 2: one) "
            "only when memory is nearly gone. From one to the next are 10 s, of one owner (a Job, as far as labels "
            "say) 60; when memory is nearly gone, 2 for all. Those to be stopped by colocation.on_runtime_overload, or "
            "by on_unbounded as rules match them outside the box, wait while as many have gone, whoever has stopped "
            "them."
        ),
    ] = 6

    @property
    def prometheus_server(self) -> tuple[str, int] | None:
        """Its address and port."""
        return None if self.prometheus is None else _host_port(self.prometheus)


class ResourceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An extended resource as it is written."""

    name: Annotated[str, Meta(pattern=_RESOURCE)]
    of: Literal["cpu", "memory"]
    per_unit: Annotated[int, Meta(ge=1, le=1000)] = 1


class Kubernetes(Struct, frozen=True, kw_only=True):
    """What this node writes to the API server and reads there, by kubelet's own credential. See docs/kubernetes.md."""

    enabled: Annotated[
        bool,
        doc(
            "Publish what the node can lend, evict through the API, and follow the policy that the cluster "
            "writes into the Node's annotation. Nothing but an eviction waits for it, and that for seconds: without an "
            "API server, all goes on as it was.",
            restart=True,
        ),
    ] = False
    kubeconfig: (
        Annotated[
            str,
            Meta(pattern=_PATH),
            doc(
                "Kubelet's kubeconfig. Not set: that of the kubelet that runs, or /etc/kubernetes/kubelet.conf.",
                expects="an absolute path of a file",
                restart=True,
            ),
        ]
        | None
    ) = None
    publish: Annotated[
        bool, doc("Whether the Node's status has the names below, from the prediction for the next hour.")
    ] = True
    names: Annotated[
        ResourcesName,
        doc(
            "The extended resources: kubernetes.io/batch-cpu and batch-memory, which Koordinator and "
            "Volcano have, too (batch), or another system's."
        ),
    ] = "batch"
    resources: Annotated[
        tuple[ResourceTable, ...],
        Meta(max_length=8),
        doc(
            "Names of one's own, instead. per_unit is how much of it one core, or one byte, is: 1 (not set), or "
            "1000 for thousandths.",
            expects="a list of at most 8 tables",
            example='{ name = "example.com/spare-cpu", of = "cpu", per_unit = 1000 }',
        ),
    ] = ()
    cpu_watermark_ratio: Annotated[
        float,
        Meta(ge=0.1, le=1.0),
        doc(
            "The share of the node's CPUs that what online used in the last five minutes and what is published may "
            "fill, where the box is open (cpu.bound). Where it is not, cpu.watermark_ratio counts."
        ),
    ] = 0.95
    speed_ratio: Annotated[
        float,
        Meta(ge=0.1, le=1.0),
        doc(
            "Offline pods keep at least this share of the CPU that they asked for, should online use what is forecast "
            "for the hour. The lower, the more is published of it where the box is open. What pods really get is "
            "measured, and moves what is published."
        ),
    ] = 0.5
    on_starved: Annotated[
        Literal["evict", "report"],
        doc(
            "When an offline pod got less than half of the CPU that it wanted for five minutes, and less than "
            "speed_ratio: the node's youngest offline pod is evicted through the API, within the numbers of "
            "[interference], and its work is lost where it saves none (evict), or it is only reported (report)."
        ),
    ] = "evict"


class Observe(Struct, frozen=True, kw_only=True):
    """/metrics, /healthz and /readyz over TCP, and the log on stderr. `criproxy status` asks at a socket of root's."""

    address: Annotated[
        str,
        Meta(pattern=_ADDRESS),
        doc(
            "Loopback only: the endpoints have no authentication.",
            expects="a loopback address with a port, such as 127.0.0.1:9464 or [::1]:9464",
            restart=True,
        ),
    ] = "127.0.0.1:9464"
    remote_address: (
        Annotated[
            str,
            Meta(pattern=_ADDRESS),
            doc(
                "Where a Prometheus that is not on this machine asks for metrics, over TLS: it needs tls_certificate "
                "and tls_key, and token_file or client_ca. These files are read again when they change. "
                "`systemctl set-property criproxy.service IPAddressAllow=...` with its address lets it in to "
                "the package's service. Not set: there is no such way in.",
                expects="an IP address of this machine with a port, such as 0.0.0.0:9465 or [::]:9465",
                restart=True,
            ),
        ]
        | None
    ) = None
    tls_certificate: (
        Annotated[
            _AbsolutePath,
            doc("The certificate of remote_address, and its chain, as PEM.", expects=_FILE, restart=True),
        ]
        | None
    ) = None
    tls_key: (
        Annotated[_AbsolutePath, doc("The key of tls_certificate, as PEM.", expects=_FILE, restart=True)] | None
    ) = None
    token_file: (
        Annotated[
            _AbsolutePath,
            doc(
                "Bearer tokens, one on each line: whoever has one may ask at remote_address.",
                expects=_FILE,
                restart=True,
            ),
        ]
        | None
    ) = None
    client_ca: (
        Annotated[
            _AbsolutePath,
            doc(
                "Certificates of authorities, as PEM: whoever has a certificate of one of them may ask at "
                "remote_address. Use an authority of its own: the cluster's gives certificates to every kubelet.",
                expects=_FILE,
                restart=True,
            ),
        ]
        | None
    ) = None
    pod_names: Annotated[
        bool,
        doc(
            "Whether /status is there over TCP as well: then every user of this machine, and every pod on "
            "its network, may read the names and namespaces of offline pods.",
            restart=True,
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], doc("The least severe events that are logged.")
    ] = "info"

    @property
    def host_port(self) -> tuple[str, int]:
        return _host_port(self.address)

    @property
    def remote_host_port(self) -> tuple[str, int] | None:
        return None if self.remote_address is None else _host_port(self.remote_address)


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return "127.0.0.1" if host == "localhost" else host.strip("[]"), int(port)  # no resolver is asked


class Config(Struct, frozen=True, kw_only=True):
    """All settings of a node. `Config()` is what an empty file means."""

    proxy: Proxy = Proxy()
    kubelet: Kubelet = Kubelet()
    colocation: Colocation = Colocation()
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    pids: Pids = Pids()
    io: Io = Io()
    network: Network = Network()
    hardening: HardeningTable = HardeningTable()
    cpuset: Cpuset = Cpuset()
    cache: Cache = Cache()
    control: Control = Control()
    schedule: Schedule = Schedule()
    guard: Guard = Guard()
    interference: Interference = Interference()
    kubernetes: Kubernetes = Kubernetes()
    observe: Observe = Observe()

    @property
    def own_folders(self) -> tuple[str, ...]:
        """Kubelet's, and those of the sockets: an offline pod may not mount them."""
        sockets = self.proxy.runtime_path, self.proxy.listen_path
        return self.kubelet.root_dir, *map(posixpath.dirname, sockets)

    def hooks(self, *, child_quota: bool, own_folders: tuple[str, ...] = ()) -> HookSettings:
        """What the hooks go by on a node whose kernel takes a CPU quota in the box, or does not. `own_folders`: those
        of the criproxy that runs, also while a change of them waits for a restart.
        """
        network = self.network
        most = Bandwidth(network.max_egress_bits_per_s, network.max_ingress_bits_per_s)
        hardening = self.hardening.of_hooks()
        if hardening.refuse_host_paths:
            refused = dict.fromkeys((*hardening.refuse_host_paths, *self.own_folders, *own_folders))
            hardening = replace(hardening, refuse_host_paths=tuple(refused))
        return HookSettings(child_quota, most, hardening)


def _socket_path(value: str) -> str:
    return posixpath.normpath("/" + value.removeprefix("unix://").lstrip("/"))


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start = DAY_NAMES.index(first)
        count = (DAY_NAMES.index(last or first) - start) % len(DAY_NAMES) + 1
        days.update((start + ahead) % len(DAY_NAMES) for ahead in range(count))
    return frozenset(days)


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)
