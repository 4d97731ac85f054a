"""Who has which level, what it asks for, and what of the settings is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlive.base import BadInput, Invalid
from outlive.failover import (
    LEVELS_LIMIT,
    PATTERNS_LIMIT,
    Demand,
    Demands,
    ProtectionSettings,
    check_protection,
    check_vm_protection,
    restart_order,
)
from outlive.placement import VmView

LEVELS = {"critical": {"slots": 3, "priority": 100}, "batch": {"slots": 0, "priority": -5}, "plain": {"priority": 1}}


def settings(**changes: Any) -> ProtectionSettings:
    return msgspec.convert({"levels": LEVELS, **changes}, ProtectionSettings)


def vm(**fields: Any) -> VmView:
    return VmView(id=fields.pop("id", "v"), host="h1", **fields)


def level(view: VmView, **changes: Any) -> str:
    return Demands({}, settings(**changes)).demand_of(view).level


def test_without_settings_everybody_has_priority_zero_and_what_the_flavor_asks_for() -> None:
    demands = Demands({"db_*": 2})
    assert demands.demand_of(vm(flavor="db_1")) == Demand(required=2, priority=0, level="")
    assert demands.demand_of(vm(flavor="web")) == Demand(required=0, priority=0, level="")


def test_the_vms_own_level_counts_before_project_flavor_and_default() -> None:
    ways = {"projects": {"p*": "batch"}, "flavors": {"db_*": "critical"}, "default": "plain"}
    assert level(vm(level="critical", project="p1", flavor="db_1"), **ways) == "critical"
    assert level(vm(project="p1", flavor="db_1"), **ways) == "batch"
    assert level(vm(project="q1", flavor="db_1"), **ways) == "critical"
    assert level(vm(project="q1", flavor="web"), **ways) == "plain"


def test_the_first_project_pattern_that_matches_counts() -> None:
    assert level(vm(project="p1"), projects={"p*": "batch", "p1": "critical"}) == "batch"
    assert level(vm(project="p1"), projects={"p1": "critical", "p*": "batch"}) == "critical"


def test_of_the_flavor_patterns_the_level_with_the_largest_priority_counts() -> None:
    assert level(vm(flavor="db_1"), flavors={"*": "batch", "db_*": "plain", "d*": "critical"}) == "critical"


def test_a_level_that_there_is_not_counts_as_none_and_is_told() -> None:
    demands = Demands({"*": 2}, settings(default="plain"))
    found = demands.collect_demands([vm(level="gold"), vm(id="w", level="critical")])
    assert demands.demand_of(vm(level="gold")).level == "plain"
    assert found.unknown == {"v": "gold"}
    assert found.levels == {"v": "plain", "w": "critical"}
    assert found.priorities == {"v": 1, "w": 100}


def test_slots_of_a_level_replace_those_of_the_flavor_and_null_leaves_them() -> None:
    demands = Demands({"*": 2}, settings())
    assert [demands.required_slots(vm(level=name)) for name in LEVELS] == [3, 0, 0]
    assert [demands.required_slots(vm(level=name, flavor="f")) for name in LEVELS] == [3, 0, 2]


def test_the_vms_own_priority_counts_more_than_that_of_its_level() -> None:
    demands = Demands({"*": 2}, settings())
    assert demands.demand_of(vm(level="critical", priority=7)) == Demand(required=3, priority=7, level="critical")
    assert demands.priority_of(vm(level="critical", priority=0)) == 0
    assert demands.priority_of(vm(priority=4)) == 4


def test_slots_for_everybody_replace_those_of_levels_too() -> None:
    demands = Demands({"*": 2}, settings(), everybody=1)
    assert [demands.required_slots(vm(level=name)) for name in LEVELS] == [1, 1, 1]


def test_all_ways_of_asking_agree() -> None:
    demands = Demands({"*": 2, "db_*": 3}, settings(flavors={"db_*": "plain"}, projects={"p": "critical"}))
    views = [
        vm(id=f"{lv}-{project}-{flavor}", level=lv, project=project, flavor=flavor)
        for lv in ("", "batch", "gold")
        for project in ("", "p")
        for flavor in ("", "db_1", "web")
    ]
    found = demands.collect_demands(views)
    for view in views:
        one = demands.demand_of(view)
        assert found.required.get(view.id, 0) == one.required == demands.required_slots(view)
        assert found.priorities.get(view.id, 0) == one.priority == demands.priority_of(view)
        assert found.levels.get(view.id, "") == one.level


def test_vms_restart_by_priority_then_memory_then_id() -> None:
    views = [vm(id="a", memory_bytes=1), vm(id="b", memory_bytes=2), vm(id="c"), vm(id="d", memory_bytes=2)]
    assert [view.id for view in restart_order(views, {"c": 5})] == ["c", "b", "d", "a"]


@pytest.mark.parametrize(
    ("changes", "place", "text"),
    [
        ({"default": "gold"}, "protection.default", "no level 'gold'"),
        ({"flavors": {"db_*": "gold"}}, "protection.flavors.db_*", "no level 'gold'"),
        ({"projects": {"p": "gold"}}, "protection.projects.p", "no level 'gold'"),
        ({"flavors": {"db_[": "plain"}}, "protection.flavors.db_[", "malformed"),
        ({"levels": {"a b": {}}}, "protection.levels", "cannot be the name"),
        ({"levels": {"a": {"slots": 17}}}, "protection.levels.a.slots", "17 slots"),
        ({"levels": {"a": {"slots": -1}}}, "protection.levels.a.slots", "-1 slots"),
        ({"levels": {"a": {"priority": 10**7}}}, "protection.levels.a.priority", "out of range"),
        ({"levels": {f"l{n}": {} for n in range(LEVELS_LIMIT + 1)}}, "protection.levels", "101 levels"),
        ({"projects": {f"p{n}": "plain" for n in range(PATTERNS_LIMIT + 1)}}, "protection.projects", "1001 patterns"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_a_remedy(changes: dict[str, Any], place: str, text: str) -> None:
    with pytest.raises(BadInput, match=text) as refused:
        check_protection(settings(**changes))
    assert refused.value.place == place
    assert refused.value.remedy


def test_what_is_right_is_taken() -> None:
    check_protection(settings(default="plain", flavors={"*": "batch"}, projects={"p[1-3]": "critical"}))
    check_protection(ProtectionSettings())


def test_what_a_vm_asks_for_has_the_form_of_what_settings_can_give() -> None:
    check_vm_protection("v", "", None)
    check_vm_protection("v", "not-there-yet", -7)
    for level, priority, place in (("a b", None, "spec.protection"), ("", 2**70, "spec.restartPriority")):
        with pytest.raises(Invalid) as refused:
            check_vm_protection("v", level, priority)
        assert refused.value.place == place
