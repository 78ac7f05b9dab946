"""Makes what is in monitoring/made from the rules and dashboards, and checks that they name metrics that there are.

`python -m monitoring.generate [--check]`
--check writes nothing, and fails when a file is not what the code makes.
"""

import json
import sys
from collections.abc import Iterator
from typing import Final

import yaml

from monitoring.dashboards import FLEET, ONE_NODE, boards, expressions
from monitoring.rules import ALERTS, RECORDED, RUNBOOK, alert_groups, rule_groups
from monitoring.table import ROOT, controllers, daemons, labels_by_name, ledgers, webhooks, wrong_names

MADE: Final = ROOT / "monitoring" / "made"
_HEAD: Final = "# Made by `.venv/bin/python -m monitoring.generate`.\n"


def files() -> dict[str, str]:
    """The content of each, by its name in `MADE`."""
    both = {"groups": [*_groups(rule_groups()), *_groups(alert_groups())]}
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "criproxy", "namespace": "criproxy-system", "labels": {"role": "alert-rules"}},
        "spec": both,
    }
    return {
        "rules.json": _json(rule_groups()),
        "alerts.json": _json(alert_groups()),
        "prometheus.yaml": _HEAD + _yaml(both),
        "prometheusrule.yaml": _HEAD + _yaml(manifest),
        **{f"dashboards/{name}": text for name, text in boards().items()},
    }


def amiss() -> Iterator[str]:
    """What no check of a file shows: names that there are not, alerts without a runbook."""
    known = labels_by_name([*daemons(), *webhooks(), *controllers(), *ledgers()])
    recorded = {one.record for one in RECORDED}
    for expr in (
        *(one.expr for one in (*RECORDED, *ALERTS)),
        *expressions(FLEET),
        *expressions(ONE_NODE),
    ):
        for wrong in wrong_names(expr, known):
            yield f"{wrong}: {expr}"
        for name in recorded_names(expr) - recorded:
            yield f"nothing records {name}: {expr}"
    anchors = {
        line.removeprefix("### ").lower()
        for line in (ROOT / RUNBOOK).read_text(encoding="utf-8").splitlines()
        if line.startswith("### ")
    }
    yield from (f"{RUNBOOK} has no section ### {one.name}" for one in ALERTS if one.anchor not in anchors)


def recorded_names(expr: str) -> set[str]:
    return {word for word in expr.replace("(", " ").replace(")", " ").replace(",", " ").split() if _is_recorded(word)}


def _is_recorded(word: str) -> bool:
    return word.count(":") == 2 and word.replace(":", "").replace("_", "").isalnum()


def _groups(of: dict[str, object]) -> list[object]:
    groups = of["groups"]
    assert isinstance(groups, list)
    return groups


def _json(what: object) -> str:
    return json.dumps(what, indent=2) + "\n"


def _yaml(what: object) -> str:
    return yaml.safe_dump(what, sort_keys=False, width=110, allow_unicode=True)


def main() -> int:
    wrong = [*amiss()]
    for name, text in files().items():
        file = MADE / name
        if "--check" in sys.argv[1:]:
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                wrong.append(f"monitoring/made/{name} is not what the code makes: run python -m monitoring.generate")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for one in wrong:
        print(one, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
