"""Which pods are of the higher tier, by their labels."""

from collections.abc import Mapping

import pytest

from criproxy.hooks.tiers import is_mid


@pytest.mark.parametrize(
    ("labels", "mid"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"colocation.criproxy.io/tier": "mid"}, True, id="mid"),
        pytest.param({"colocation.criproxy.io/tier": "low"}, False, id="low"),
        pytest.param({"colocation.criproxy.io/tier": "MID"}, False, id="not-known"),
        pytest.param({"koordinator.sh/priority-class": "koord-mid"}, True, id="koordinators"),
        pytest.param({"koordinator.sh/priority-class": "koord-batch"}, False, id="koordinators-other"),
        pytest.param(
            {"colocation.criproxy.io/tier": "low", "koordinator.sh/priority-class": "koord-mid"}, False, id="ours-first"
        ),
    ],
)
def test_tier_is_what_the_labels_say(labels: Mapping[str, str], mid: bool) -> None:
    assert is_mid(labels) is mid
