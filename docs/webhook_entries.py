"""What the API server does about marks of offline pods. `docs.generate` writes it, a row for each mark.

`webhook`: which pods it sends to the webhook when they are made. `marks`: that a pod's marks, and the webhook's record
of what it asked for, stay as they were then. A pod that is made without its mark and gets it later would ask for what
online pods are promised; one that loses it would be placed by what nodes lend, and run outside the box. The API server
checks it by itself, in an admission policy: no update of a pod waits for a webhook, or fails as there is none.
"""

import json
from typing import Final

import yaml

from criproxy.vocabulary.names import PREFIX, RESOURCES
from criproxy.vocabulary.presets import LABELS, MARKS, OWN_MARK, Mark

_BEGIN: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# Marked pods alone reach the webhook: when it is away, they can't be made, as they would use up online's requests; all
# others start as ever. A selector has no "or", so there is an entry for each mark, and none for two.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: criproxy-cluster
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
      matchLabels: {{{key}: {value}}}
{but}    rules:
      - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}}
    clientConfig: # its caBundle is written by the leader
      service: {{name: criproxy-cluster, namespace: criproxy-system, path: /convert, port: 443}}
"""

_MARKS: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# A pod is made offline or online, and stays it: its marks may neither come nor go, nor may the webhook's record change.
# By pods/status labels can be written, too. The node takes the record for a mark, where this policy is not there.
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
        [{marks}]
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
"""


def webhook() -> str:
    """The manifest. A pod with several marks is in the first one's entry alone, so that it is sent once."""
    text, before = _BEGIN, list[Mark]()
    for preset, marks in LABELS.items():
        for number, mark in enumerate(marks, 1):
            name = f"{preset}{f'-{number}' if number > 1 else ''}.{PREFIX.rstrip('/')}"
            text += _ENTRY.format(name=name, key=_scalar(mark.key), value=_scalar(mark.value), but=_but(before))
            before.append(mark)
    return text


def marks() -> str:
    """The manifest of the admission policy."""
    every = (OWN_MARK, *(mark for of_preset in MARKS.values() for mark in of_preset))
    rows = (json.dumps([f"{mark.of}s", mark.key, mark.value]) for mark in every)
    listed = ",\n        ".join(rows)
    name = f"marks.{PREFIX.rstrip('/')}"
    return _MARKS.format(name=name, marks=listed, record=json.dumps(RESOURCES), record_key=RESOURCES)


def _but(marks: list[Mark]) -> str:
    lines = [
        f"        - {{key: {_scalar(one.key)}, operator: NotIn, values: [{_scalar(one.value)}]}}\n" for one in marks
    ]
    return "".join(("      matchExpressions:\n", *lines)) if lines else ""


def _scalar(text: str) -> str:
    """As YAML takes it for this text, and for no truth or number."""
    return text if yaml.safe_load(text) == text else json.dumps(text)
