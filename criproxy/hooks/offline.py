"""Which pods are offline, and in words why.

A pod that the cluster's webhook has converted is offline by the record that the webhook leaves on it, too: such a pod
asks for what nodes lend, and whoever takes its mark away before it starts must not lead it past the box.
"""

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from criproxy.model import Pod
from criproxy.vocabulary.names import RESOURCES
from criproxy.vocabulary.presets import MARKS, OWN_MARK, Mark

_SHOWN: Final = 80
"""Characters of a pod's own text that a reason repeats."""

CONFIG_SOURCE: Final = "kubernetes.io/config.source"
"""Set by kubelet on every pod: "api", or how it found a static one ("file", "http")."""


class Subject(enum.StrEnum):
    """What of a pod a rule looks at."""

    LABEL = "label"
    ANNOTATION = "annotation"
    NAMESPACE = "namespace"


class Test(enum.StrEnum):
    """How a rule compares, always by code points: no wildcard, no case folding."""

    EQUALS = "equals"
    PREFIX = "prefix"
    PRESENT = "present"

    __test__ = False  # pytest would take the name for a test case


class Rule(Struct, frozen=True):
    """One way to be offline. `key` is the label's or annotation's ("" for a namespace); `value` is "" for PRESENT.

    `not_in`: the namespaces whose pods it never matches.
    """

    subject: Subject
    key: str
    test: Test
    value: str
    not_in: tuple[str, ...] = ()

    def why(self, pod: Pod) -> str | None:
        """Why `pod` matches, in words; None when it does not."""
        found = self._found(pod)
        if found is None:
            return None
        name = f"{self.subject} {self.key}" if self.key else str(self.subject)
        match self.test:
            case Test.EQUALS if found == self.value:
                return f"{name} is {_quoted(found)}"
            case Test.PREFIX if found.startswith(self.value):
                return f"{name} is {_quoted(found)}, which starts with {_quoted(self.value)}"
            case Test.PRESENT:
                return f"{name} is present"
            case _:
                return None

    def _found(self, pod: Pod) -> str | None:
        if pod.ref.namespace in self.not_in:
            return None
        match self.subject:
            case Subject.LABEL:
                return pod.labels.get(self.key)
            case Subject.ANNOTATION:
                return pod.annotations.get(self.key)
            case Subject.NAMESPACE:
                return pod.ref.namespace


def _rule(mark: Mark) -> Rule:
    return Rule(Subject(mark.of), mark.key, Test.EQUALS, mark.value, mark.not_in)


DEFAULT_RULE: Final = _rule(OWN_MARK)
_CONVERTED: Final = Rule(Subject.ANNOTATION, RESOURCES, Test.PRESENT, "")
PRESETS: Final[Mapping[str, tuple[Rule, ...]]] = {name: tuple(map(_rule, marks)) for name, marks in MARKS.items()}


class OfflineRules(Struct, frozen=True):
    """The rules of a node: its own, and those of the presets that it chose."""

    rules: tuple[Rule, ...]
    presets: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    @property
    def every(self) -> tuple[Rule, ...]:
        """All that make a pod offline, but for a static pod of kube-system."""
        return (*self.rules, *(rule for rules in self.presets.values() for rule in rules), _CONVERTED)

    def why(self, pod: Pod) -> str | None:
        """Why `pod` is offline, in words; None: it is online.

        A static pod of kube-system never is: the node itself depends on those.
        """
        if is_static_system_pod(pod):
            return None
        for rule in self.rules:
            if reason := rule.why(pod):
                return reason
        for name, rules in self.presets.items():
            for rule in rules:
                if reason := rule.why(pod):
                    return f"{reason} (preset {name})"
        return _CONVERTED.why(pod)


def is_static_system_pod(pod: Pod) -> bool:
    """Whether kubelet took the pod from a file or URL of the node, into kube-system."""
    return pod.ref.namespace == "kube-system" and pod.annotations.get(CONFIG_SOURCE, "api") != "api"


def _quoted(text: str) -> str:
    """`text` in quotes, escaped to ASCII, and cut: a pod may carry any text of any length."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    escaped = cut.encode("ascii", "backslashreplace").decode("ascii")
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escaped) + '"'
