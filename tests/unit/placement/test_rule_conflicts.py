"""Rules that no hosts can meet together are found, and nothing else is called so."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.placement import HardGroups, VmConstraints, concerned_vm, find_contradictions
from outlive.resources import NOWHERE, AffinityRule
from outlive.resources.reasons import RuleConflict, render

HOSTS = ("h1", "h2", "h3")
ZONES = {"h1": "a", "h2": "a", "h3": "b"}


def vm(name: str, *rules: str, hosts: tuple[str, ...] = (), zone: str = "") -> VmConstraints:
    """A rule is ``+group`` for affinity, ``-group`` for anti-affinity, ``~group`` for a soft one."""
    policies = {"+": "affinity", "-": "anti-affinity", "~": "soft-anti-affinity"}
    made = tuple(AffinityRule(group=rule[1:], policy=policies[rule[0]]) for rule in rules)  # type: ignore[arg-type]
    return VmConstraints(id=name, rules=made, host_limit=hosts, zone=zone)


@pytest.mark.parametrize(
    ("vms", "code", "words"),
    [
        ([vm("a", "+x", "-y"), vm("b", "+x", "-y")], RuleConflict.BOTH_POLICIES, "affinity group x"),
        ([vm("a", "+x", "-z"), vm("b", "+x", "+y"), vm("c", "+y", "-z")], RuleConflict.CHAINED, "x, y put a and c"),
        ([vm("a", "+x", hosts=("h1",)), vm("b", "+x", hosts=("h2",))], RuleConflict.NO_COMMON_HOST, "a may run on h1"),
        ([vm("a", "+x", zone="a"), vm("b", "+x", zone="b")], RuleConflict.ZONES_DIFFER, "zones a and b"),
        ([vm("a", "-x", zone="b"), vm("b", "-x", zone="b")], RuleConflict.TOO_MANY_MEMBERS, "only h3"),
        ([vm("a", "-x", hosts=("h9",)), vm("b", "-x", hosts=("h9",))], RuleConflict.TOO_MANY_MEMBERS, "2 VMs"),
        ([vm("a", hosts=NOWHERE)], RuleConflict.NO_ALLOWED_HOST, "strict preferred hosts of a"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_with_its_vms_and_groups_and_a_remedy(
    vms: list[VmConstraints], code: RuleConflict, words: str
) -> None:
    (found,) = find_contradictions(vms, ZONES)
    assert found.code == code
    assert words in render(found).text
    assert render(found).remedy
    assert concerned_vm(found) == "a"


def test_soft_rules_contradict_nothing():
    vms = [vm("a", "+x", "~y"), vm("b", "+x", "~y"), vm("c", "~z"), vm("d", "~z"), vm("e", "~z"), vm("f", "~z")]
    assert find_contradictions(vms, ZONES) == []


def test_hosts_that_nobody_knows_yet_limit_nobody():
    assert find_contradictions([vm(str(number), "-x") for number in range(9)], {}) == []


def test_only_vms_that_hard_rules_tie_together_are_looked_at():
    others = [vm("b", "+x", "-y"), vm("c", "-y"), vm("d", "-z"), vm("e", "~x"), vm("f")]
    assert {one.id for one in HardGroups(others).find_tied(vm("a", "+x"))} == {"a", "b", "c"}


RULES = ("+x", "+y", "-z", "-w")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(RULES), unique=True, max_size=3),
            st.lists(st.sampled_from(HOSTS), unique=True, max_size=2),
            st.sampled_from(("", "", "a", "b")),
        ),
        max_size=5,
    )
)
def test_what_is_called_a_contradiction_fits_on_no_hosts(drawn: list[tuple[list[str], list[str], str]]) -> None:
    vms = [vm(f"v{at}", *rules, hosts=tuple(hosts), zone=zone) for at, (rules, hosts, zone) in enumerate(drawn)]
    zoned = all(not one.host_limit or not one.zone for one in vms)
    fits = any(
        all(not one.host_limit or host in one.host_limit for one, host in zip(vms, chosen, strict=True))
        and all(not one.zone or ZONES[host] == one.zone for one, host in zip(vms, chosen, strict=True))
        and all(
            (first == second) == (rule.policy == "affinity")
            for at, (one, first) in enumerate(zip(vms, chosen, strict=True))
            for other, second in list(zip(vms, chosen, strict=True))[at + 1 :]
            for rule in set(one.rules) & set(other.rules)
        )
        for chosen in product(HOSTS, repeat=len(vms))
    )
    found = find_contradictions(vms, ZONES)
    if fits:
        assert found == []
    elif zoned and all(len(one.rules) == 1 and one.rules[0].policy == "anti-affinity" for one in vms):
        assert found, "each group by itself is judged exactly"
