"""In which of two tiers a pod puts itself: mid, or low, as all that do not say.

| mark                                  | mid         | otherwise                                 |
|---------------------------------------|-------------|-------------------------------------------|
| label `colocation.criproxy.io/tier`   | `mid`       | low, also with a value that is not known  |
| label `koordinator.sh/priority-class` | `koord-mid` | low; looked at where the first is missing |

Whoever may create a pod may write that. It lifts the pod above other offline ones only, never above the box.
Source: Koordinator, apis/extension/constants.go (LabelPodPriorityClass) and priority.go (PriorityMid).
"""

from collections.abc import Mapping

from criproxy.vocabulary.names import KOORDINATOR_CLASS, KOORDINATOR_MID, TIER


def is_mid(labels: Mapping[str, str]) -> bool:
    """Whether a pod with these labels is of the higher tier."""
    if TIER in labels:
        return labels[TIER] == "mid"
    return labels.get(KOORDINATOR_CLASS) == KOORDINATOR_MID
