"""The webhook's entries, one for each mark of offline pods that is a label. `docs.generate` writes them."""

import json
from typing import Final

import yaml

from criproxy.vocabulary.names import PREFIX
from criproxy.vocabulary.presets import LABELS, Mark

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


def webhook() -> str:
    """The manifest. A pod with several marks is in the first one's entry alone, so that it is sent once."""
    text, before = _BEGIN, list[Mark]()
    for preset, marks in LABELS.items():
        for number, mark in enumerate(marks, 1):
            name = f"{preset}{f'-{number}' if number > 1 else ''}.{PREFIX.rstrip('/')}"
            text += _ENTRY.format(name=name, key=_scalar(mark.key), value=_scalar(mark.value), but=_but(before))
            before.append(mark)
    return text


def _but(marks: list[Mark]) -> str:
    lines = [
        f"        - {{key: {_scalar(one.key)}, operator: NotIn, values: [{_scalar(one.value)}]}}\n" for one in marks
    ]
    return "".join(("      matchExpressions:\n", *lines)) if lines else ""


def _scalar(text: str) -> str:
    """As YAML takes it for this text, and for no truth or number."""
    return text if yaml.safe_load(text) == text else json.dumps(text)
