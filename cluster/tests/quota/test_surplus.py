"""Who is suspended where a pool stays below what is in use, and who comes back."""

from hypothesis import given
from hypothesis import strategies as st

from criproxy_cluster.budget import HOUR_S, Budget
from criproxy_cluster.quota.pool import NOTHING, Amounts
from criproxy_cluster.quota.surplus import OVER_S, Surplus, Workload, to_resume

LENT = {"lent": Amounts(4000, 1 << 40)}


def workload(name, millicores=1000, since="", *, active=True, marked=False, reserved=True, flavor="lent"):
    used = {flavor: Amounts(millicores, 1)} if reserved else {}
    return Workload("ns", name, "1", active, marked, reserved, since or f"2026-01-01T00:00:0{name}Z", used)


FIVE = [workload(str(number)) for number in range(5)]


def names(found):
    return [one.name for one in found]


def over(surplus, workloads=FIVE, lent=LENT, seconds=OVER_S, began_s=0.0):
    """Who is chosen after so long."""
    assert surplus.chosen(workloads, lent, began_s) == []
    return surplus.chosen(workloads, lent, began_s + seconds)


def test_newest_goes_once_the_pool_was_below_for_long():
    assert names(over(Surplus(Budget(10)))) == ["4"]
    assert over(Surplus(Budget(10)), seconds=OVER_S - 1) == []


def test_pool_that_is_back_for_a_moment_begins_the_time_anew():
    surplus = Surplus(Budget(10))
    surplus.chosen(FIVE, LENT, 0.0)
    surplus.chosen(FIVE, {"lent": Amounts(5000, 1 << 40)}, OVER_S / 2)
    surplus.chosen(FIVE, LENT, OVER_S / 2 + 1)
    assert surplus.chosen(FIVE, LENT, OVER_S) == []


def test_as_many_go_as_are_needed_within_the_budget():
    less = {"lent": Amounts(2000, 1 << 40)}
    assert names(over(Surplus(Budget(10)), lent=less)) == ["4", "3", "2"]
    surplus = Surplus(budget := Budget(2))
    assert names(over(surplus, lent=less)) == ["4", "3"]
    budget.spend(OVER_S, 0.0)
    budget.spend(OVER_S, 0.0)
    assert surplus.chosen(FIVE[:3], less, OVER_S + 1) == []
    assert names(surplus.chosen(FIVE[:3], less, OVER_S + HOUR_S)) == ["2"]


def test_one_that_is_refused_counts_as_in_use_and_the_next_goes():
    surplus = Surplus(Budget(1))
    surplus.chosen(FIVE, LENT, 0.0)
    assert names(surplus.chosen(FIVE, LENT, OVER_S, lambda one: one.name == "4")) == ["3"]


def test_those_that_take_none_of_it_stay():
    others = [workload("8", flavor="exclusive"), workload("9", 0)]
    assert names(over(Surplus(Budget(10)), [*FIVE, *others])) == ["4"]


def test_one_that_is_inactive_already_counts_for_nothing():
    assert over(Surplus(Budget(10)), [*FIVE[:4], workload("4", active=False)]) == []


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=12), st.integers(0, 20_000), st.integers(0, 12)
)
def test_no_more_than_needed_and_the_budget_is_kept(parts, pool, budget):
    there = [workload(f"{index:02}", millicores, active=active) for index, (millicores, active) in enumerate(parts)]
    lent = {"lent": Amounts(pool, 1 << 40)}
    surplus = Surplus(Budget(budget))
    surplus.chosen(there, lent, 0.0)
    found = surplus.chosen(there, lent, OVER_S)

    assert len(found) <= budget
    left = [one for one in there if one.active and one not in found]
    used = sum((one.used["lent"] for one in left), NOTHING).millicores
    if found:
        assert used + found[-1].used["lent"].millicores > pool, "without the last one it was too much"
    if len(found) < budget:
        assert used <= pool or not left


def test_one_comes_back_once_kueue_has_taken_its_quota_and_only_if_it_is_ours():
    ours = workload("1", active=False, marked=True, reserved=False)
    still = workload("2", active=False, marked=True)
    users = workload("3", active=False, reserved=False)
    undone = workload("4", active=True, marked=True)
    assert names(to_resume([ours, still, users, undone])) == ["1", "4"]
