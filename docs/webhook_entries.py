"""What the API server does about marks of offline pods. `docs.generate` writes it, a row for each mark.

`webhook`: which pods it sends to the webhook when they are made: a label chooses by a selector, an annotation by an
expression, both in the API server, which sends it no other pod. A namespace may leave annotations to another system.
`unmarked`: that an author hears of it when a pod asks for what nodes lend, and has no mark. With it,
`unconverted`: that an author hears of it when a pod got its mark after the webhook, and `requests` when a converted pod
asks for CPU or memory all the same. `marks`: that a pod's marks, and
the webhook's record of what it asked for, stay as they were when it was made, and that no pod is made with a record and
without a mark, as the webhook would not write that record anew.

A pod that is made without its mark and gets it later would ask for what online pods are promised; one that loses it
would be placed by what nodes lend, and run outside the box. The API server checks it by itself, in admission policies:
no update of a pod waits for a webhook, or fails as there is none.
"""

import json
from collections.abc import Iterable
from typing import Final

import yaml

from criproxy.vocabulary.names import (
    ANNOTATION_MARKS,
    CLASS,
    IGNORE,
    KEEP_REQUESTS,
    OFFLINE,
    OVERFLOW,
    PREFIX,
    RESOURCES,
)
from criproxy.vocabulary.presets import EVERY_MARK, MARKS, NAMES, OLDER, OWN_MARK, SYSTEM_NAMESPACES, Mark

_BEGIN: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# Marked pods alone reach the webhook: when it is away, they can't be made, as they would use up online's requests; all
# others start as ever. A selector has no "or", so there is an entry for each label, and knows no annotations, for which
# an entry has an expression (matchConditions, Kubernetes 1.30 and later; an API server of before may drop it, and the
# entry is of all pods then: those of kube-system, and the webhook's own, must never wait for it). The webhook gives all
# of them our own mark, whose entry is the last: so it is called again where a webhook that comes later has changed the
# pod. The API server does so with entries that it has called before, and no others, and passes through all of them at
# most twice, in the order of their configurations' names. Of two that change what the other one has made, the last name
# has the last word: with a name before its own, a policy engine that adds missing requests would have it.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: zz-criproxy-cluster
webhooks:
"""

_ENTRY: Final = """\
  - name: {name}
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    reinvocationPolicy: IfNeeded
    timeoutSeconds: 5
    objectSelector:
{chosen}    rules:
      - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}}
    clientConfig: # its caBundle is written by the Job of certificates
      service: {{name: criproxy-cluster, namespace: criproxy-system, path: /convert, port: 443}}
"""

_BY_LABEL: Final = """\
      matchLabels: {{{key}: {value}}}
"""

_WHERE_ANNOTATIONS_MARK: Final = f"""\
    namespaceSelector:
      matchExpressions:
        - {{key: kubernetes.io/metadata.name, operator: NotIn, values: [{", ".join(SYSTEM_NAMESPACES)}]}}
        - {{key: {ANNOTATION_MARKS}, operator: NotIn, values: [{IGNORE}]}}
"""

_BY_ANNOTATION: Final = """\
    matchConditions:
      - name: annotation
        expression: >-
          [{annotations}].exists(one,
          object.?metadata.annotations[?one[0]].orValue("") == one[1])
"""

_MARKS: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# A pod is made offline or online, and stays it: its marks may neither come nor go, nor may the webhook's record change.
# By pods/status labels can be written, too. The node takes the record for a mark, where these policies are not there.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [pods, pods/status]
  variables:
    - name: marks
      expression: >-
        {marks}
    - name: before
      expression: >-
        {{"labels": oldObject.?metadata.labels.orValue({{}}),
        "annotations": oldObject.?metadata.annotations.orValue({{}})}}
    - name: now
      expression: >-
        {{"labels": object.?metadata.labels.orValue({{}}),
        "annotations": object.?metadata.annotations.orValue({{}})}}
    - name: moved
      expression: >-
        variables.marks.filter(one, (one[1] in variables.before[one[0]] && variables.before[one[0]][one[1]] == one[2])
        != (one[1] in variables.now[one[0]] && variables.now[one[0]][one[1]] == one[2]))
    - name: record
      expression: >-
        [variables.before["annotations"], variables.now["annotations"]].map(one,
        {record} in one ? [one[{record}]] : [])
  validations:
    - expression: variables.moved.size() == 0
      messageExpression: >-
        variables.moved.map(one, "metadata." + one[0] + "[" + one[1] + "] = " + one[2]).join(", ") +
        ": a pod is offline or online from its creation on: delete it, and create it as it should be"
    - expression: variables.record[0] == variables.record[1]
      message: >-
        metadata.annotations[{record_key}] is what the webhook has recorded when the pod was
        created: leave it as it is
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Deny]
---
# The webhook writes the record of a pod that has a mark, and sees no other: a record without one is its author's.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {record_name}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
  matchConditions:
    - name: record
      expression: '{record} in object.?metadata.annotations.orValue({{}})'
    - name: no-mirror
      expression: '!("kubernetes.io/config.mirror" in object.?metadata.annotations.orValue({{}}))'
  validations:
    - expression: >-
        {has_one}      message: >-
        metadata.annotations[{record_key}] is what the webhook records of an offline pod, and this
        one has no mark of one: leave it out, or give the pod the label {remedy}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {record_name}
spec:
  policyName: {record_name}
  validationActions: [Deny]
"""

_SPEAKS: Final = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Ignore
  matchConstraints:
{where}    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
  matchConditions:
    - name: {condition}
      expression: >-
        {holds}    - name: no-mirror
      expression: '!("kubernetes.io/config.mirror" in object.?metadata.annotations.orValue({{}}))'
{checks}---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Warn]
"""
"""A policy that warns the author of a pod for which `holds` is true."""

_HAS_ONE: Final = """\
{marks}.exists(one,
        {{"labels": object.?metadata.labels.orValue({{}}),
        "annotations": object.?metadata.annotations.orValue({{}})}}[one[0]][?one[1]].orValue("") == one[2])
"""
"""The pod has one of these marks."""

_OF_THE_NAMESPACE: Final = f"""\
.filter(one,
        one[0] == "labels" || !(request.namespace in {json.dumps(SYSTEM_NAMESPACES)}))"""
"""What of a list of marks does mark a pod where it is created."""

_OF_UNMARKED: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# A pod that asks for what nodes lend and has no mark of an offline pod is not converted: it may ask for what no node
# has, and wait for ever. Its author gets a warning; with cluster/manifests/marked-only, a refusal.
"""

_CHECKS_OF_UNMARKED: Final = """\
  variables:
    - name: asked
      expression: >-
        [{names}].filter(name,
        object.spec.containers.exists(one, one.?resources.requests[?name].hasValue()))
  validations:
    - expression: variables.asked.size() == 0
      messageExpression: >-
        "it asks for " + variables.asked.join(", ") + ", and has no mark of an offline pod: " +
        "give it the label {remedy}"
"""

_OF_UNCONVERTED: Final = """\
---
# A pod that gets its mark by a webhook that comes after criproxy's was never sent to it: it asks for what online pods
# are promised. In the system's namespaces, and in those that leave them to another system, annotations are no marks.
"""

_CHECKS_OF_UNCONVERTED: Final = """\
  validations:
    - expression: >-
        {record} in object.?metadata.annotations.orValue({{}})
      message: >-
        it is marked as an offline pod, and was not converted: whatever gave it the mark came after criproxy's webhook.
        Webhooks are called in the order of their configurations' names: have that one come before zz-criproxy-cluster
"""

_OF_REQUESTS: Final = """\
---
# A converted pod asks for no CPU and memory, but for the "0" that huge pages need beside them. Where it does, a webhook
# has added it after the last word of criproxy's: the pod takes what online pods are promised.
"""

_WAS_CONVERTED: Final = """\
{record} in object.?metadata.annotations.orValue({{}}) &&
        !({overflow} in object.metadata.annotations) &&
        object.metadata.annotations[?{keeps}].orValue("") != "true"
"""

_CHECKS_OF_REQUESTS: Final = """\
  variables:
    - name: asked
      expression: >-
        ["cpu", "memory"].filter(name,
        (object.spec.containers + object.spec.?initContainers.orValue([])).exists(one,
        quantity(string(one.?resources.requests[?name].orValue("0"))).isGreaterThan(quantity("0"))))
  validations:
    - expression: variables.asked.size() == 0
      messageExpression: >-
        "it was converted, and asks for " + variables.asked.join(" and ") + ", which online pods are promised: have " +
        "the webhook that adds it leave offline pods out, or its configuration's name come before zz-criproxy-cluster"
"""


def webhook() -> str:
    """The manifest. A pod with our own mark is in its entry alone, one with several others in the first one's, too."""
    text, before = _BEGIN, [OWN_MARK]
    for preset, marks in MARKS.items():
        for number, mark in enumerate((one for one in marks if one.of == "label"), 1):
            by_label = _BY_LABEL.format(key=_scalar(mark.key), value=_scalar(mark.value))
            text += _entry(f"{preset}{f'-{number}' if number > 1 else ''}", by_label + _but(before))
            before.append(mark)
    annotations = _listed(10, ([mark.key, mark.value] for mark in EVERY_MARK if mark.of == "annotation"))
    by_annotation = _WHERE_ANNOTATIONS_MARK + _BY_ANNOTATION.format(annotations=annotations)
    text += _entry("annotations", _but(before) + by_annotation)
    return text + _entry(OFFLINE, _BY_LABEL.format(key=OWN_MARK.key, value=OWN_MARK.value))


def unmarked() -> str:
    """The manifest of the admission policies that speak to authors."""
    asked = _listed(8, (name for names in (*NAMES.values(), *OLDER) for name, _, _ in names.rows))
    of_unmarked = _CHECKS_OF_UNMARKED.format(names=asked, remedy=f"{CLASS}={OFFLINE}")

    converted = _WAS_CONVERTED.format(
        record=json.dumps(RESOURCES), overflow=json.dumps(OVERFLOW), keeps=json.dumps(KEEP_REQUESTS)
    )

    def policy(name: str, condition: str, holds: str, checks: str, where: str = "") -> str:
        full = f"{name}.{PREFIX.rstrip('/')}"
        return _SPEAKS.format(name=full, condition=condition, holds=holds, checks=checks, where=where)

    def unconverted(name: str, of: str, where: str) -> str:
        checks = _CHECKS_OF_UNCONVERTED.format(record=json.dumps(RESOURCES))
        marks = _in_expression(mark for mark in EVERY_MARK if mark.of == of)
        return policy(name, "mark", _HAS_ONE.format(marks=marks), checks, where)

    return "".join(
        (
            _OF_UNMARKED,
            policy("unmarked", "no-mark", f"!{_has_one_of_all()}", of_unmarked),
            _OF_UNCONVERTED,
            unconverted("unconverted", "label", ""),
            "---\n",
            unconverted("unconverted-annotations", "annotation", _WHERE_ANNOTATIONS_MARK),
            _OF_REQUESTS,
            policy("requests", "converted", converted, _CHECKS_OF_REQUESTS),
        )
    )


def marks() -> str:
    """The manifest of the admission policies that keep marks and records."""
    return _MARKS.format(
        name=f"marks.{PREFIX.rstrip('/')}",
        record_name=f"record.{PREFIX.rstrip('/')}",
        marks=_in_expression(EVERY_MARK),
        has_one=_has_one_of_all(),
        record=json.dumps(RESOURCES),
        record_key=RESOURCES,
        remedy=f"{CLASS}={OFFLINE}",
    )


def _has_one_of_all() -> str:
    return _HAS_ONE.format(marks=_in_expression(EVERY_MARK) + _OF_THE_NAMESPACE)


def _in_expression(marks: Iterable[Mark]) -> str:
    """As a list of where a mark is, its key and its value."""
    return f"[{_listed(8, ([f'{mark.of}s', mark.key, mark.value] for mark in marks))}]"


def _listed(indent: int, rows: Iterable[object]) -> str:
    """The items of a list in an expression, a line each."""
    return f",\n{' ' * indent}".join(map(json.dumps, rows))


def _entry(name: str, chosen: str) -> str:
    return _ENTRY.format(name=f"{name}.{PREFIX.rstrip('/')}", chosen=chosen)


def _but(marks: list[Mark]) -> str:
    lines = [
        f"        - {{key: {_scalar(one.key)}, operator: NotIn, values: [{_scalar(one.value)}]}}\n" for one in marks
    ]
    return "".join(("      matchExpressions:\n", *lines))


def _scalar(text: str) -> str:
    """As YAML takes it for this text, and for no truth or number."""
    return text if yaml.safe_load(text) == text else json.dumps(text)
