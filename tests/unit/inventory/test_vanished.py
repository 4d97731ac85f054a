"""What a source does not list any more: it is told and marked, and nobody plans on it until it is back."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.inventory.test_plan import LATER, NOW, host, planned, source, vm

from outlive.inventory import (
    Existing,
    ImportOptions,
    Inventory,
    apply_plan,
    check_inventory,
    check_leaving_out,
    find_notices,
    plan_import,
)
from outlive.resources import (
    CREATOR_LABEL,
    BadInputs,
    Flavor,
    Holder,
    Hypervisor,
    HypervisorSpec,
    VirtualMachine,
    find_condition,
)
from outlive.resources.reasons import ImportNotice


def imported(inventory: Inventory, before: Existing = Existing(), options: ImportOptions = ImportOptions()) -> Existing:
    plan = planned(inventory, before, options)
    hosts, vms = apply_plan(plan, before)
    flavors = {one.object.name: one.object for one in plan.writes if isinstance(one.object, Flavor)}
    return Existing(hosts=hosts, vms=vms, flavors={**before.flavors, **flavors}, members=before.members)


def ready(existing: Existing, name: str) -> tuple[str, str]:
    found = find_condition(existing.hosts[name].status.conditions, "Ready")
    assert found is not None
    return found.status, found.reason


FIRST = source([host("a"), host("b")], [vm("v", "a"), vm("w", "b")])


def test_a_host_that_vanished_holds_no_slot_until_it_is_listed_again() -> None:
    once = imported(FIRST)
    then = imported(source([host("b")], [vm("w", "b")]), once)
    assert ready(then, "a") == ("False", "Vanished")
    assert ready(then, "b") == ("True", "Imported")
    again = imported(source([host("a"), host("b")], [vm("v", "a"), vm("w", "b")]), then)
    assert ready(again, "a") == ("True", "Imported")
    assert again.vms["v"].host == "a"
    assert again.vms["v"].spec.power_state == "running"


def test_a_vm_that_vanished_is_nowhere_takes_no_room_and_does_not_run() -> None:
    then = imported(source([host("a"), host("b")], [vm("w", "b")]), imported(FIRST))
    gone = then.vms["v"]
    assert (gone.host, gone.status.phase, gone.spec.power_state) == ("", "vanished", "stopped")
    assert then.hosts["a"].status.num_instances == 0
    assert then.hosts["a"].status.allocation is not None
    assert then.hosts["a"].status.allocation.memory_bytes == 0


def test_nothing_is_written_again_for_what_vanished_before() -> None:
    second = source([host("b")], [vm("w", "b")])
    then = imported(second, imported(FIRST))
    assert planned(second, then, now=LATER).writes == ()


def test_what_vanished_is_told_with_its_names_and_the_remedy() -> None:
    once = imported(FIRST)
    second = source([host("b")], [vm("w", "b")])
    wanted = check_inventory(second, once, ImportOptions())
    plan = plan_import(wanted, once, ImportOptions(), landed={}, now=NOW)
    told = {one.code: one.fields for one in find_notices(wanted, once, plan, ())}
    assert told[ImportNotice.HOST_VANISHED] == {"count": 1, "hosts": ("a",)}
    assert told[ImportNotice.VM_VANISHED] == {"count": 1, "vms": ("v",)}


def test_a_vm_on_a_host_that_vanished_is_refused() -> None:
    with pytest.raises(BadInputs, match="does not have any more"):
        check_inventory(source([host("b")], [vm("v", "a")]), imported(FIRST), ImportOptions())


def test_nothing_vanishes_from_a_part_of_a_source() -> None:
    then = imported(source([host("c")], [vm("x", "c")]), imported(FIRST), ImportOptions(partial=True))
    assert ready(then, "a") == ("True", "Imported")
    assert then.vms["v"].host == "a"


@pytest.mark.parametrize("by", ["membership", "management"])
def test_a_host_whose_daemon_is_ours_has_not_vanished_nor_have_its_vms(by: str) -> None:
    once = imported(FIRST)
    own = once.hosts["a"]
    if by == "management":
        own = msgspec.structs.replace(own, spec=HypervisorSpec(management="node"))
    members = frozenset({"a"} if by == "membership" else ())
    before = Existing(hosts={**once.hosts, "a": own}, vms=once.vms, members=members)
    second = source([host("b")], [vm("w", "b")])
    for options in (ImportOptions(), ImportOptions(prune=True)):
        wanted = check_inventory(second, before, options)
        assert wanted.kept_hosts == {"a"}
        assert not wanted.gone_hosts | wanted.vanished_hosts | wanted.gone_vms | wanted.vanished_vms


def test_a_vm_that_a_host_of_ours_runs_has_not_vanished() -> None:
    once = imported(FIRST)
    holder = Holder(hypervisor="a", member_uid="u", epoch=1, run_id="r")
    run = msgspec.structs.replace(once.vms["v"].status, holders=(holder,))
    before = Existing(hosts=once.hosts, vms={**once.vms, "v": msgspec.structs.replace(once.vms["v"], status=run)})
    assert imported(source([host("a"), host("b")], [vm("w", "b")]), before).vms["v"].status.phase != "vanished"


def test_what_somebody_else_made_has_not_vanished() -> None:
    once = imported(FIRST)
    labels = {**once.vms["v"].metadata.labels, CREATOR_LABEL: "me"}
    meta = msgspec.structs.replace(once.vms["v"].metadata, labels=labels)
    before = Existing(hosts=once.hosts, vms={**once.vms, "v": msgspec.structs.replace(once.vms["v"], metadata=meta)})
    assert imported(source([host("a"), host("b")], [vm("w", "b")]), before).vms["v"].host == "a"


def test_a_bad_record_is_left_out_with_what_is_on_it_and_has_not_vanished() -> None:
    once = imported(FIRST)
    bad = source([host("a", zone="no/label"), host("b"), host("c")], [vm("w", "b"), vm("x", "c"), vm("v", phase="?!x")])
    wanted, problems = check_leaving_out(bad, once, ImportOptions())
    assert (sorted(wanted.hosts), sorted(wanted.vms)) == (["b", "c"], ["w", "x"])
    assert problems.places == {"a", "v"}
    assert not wanted.vanished_hosts | wanted.vanished_vms


def test_nothing_vanishes_while_a_record_has_no_readable_name() -> None:
    second = source([host("b")], [vm("w", "b")])
    second.nameless = True
    wanted = check_inventory(second, imported(FIRST), ImportOptions(prune=True))
    assert not wanted.gone_hosts | wanted.gone_vms


def test_a_user_who_stopped_a_vm_of_a_host_of_ours_is_not_overruled_by_a_list() -> None:
    once = imported(FIRST)
    stopped = msgspec.structs.replace(once.vms["v"].spec, power_state="stopped")
    own = msgspec.structs.replace(once.hosts["a"], spec=HypervisorSpec(management="node"))
    before = Existing(
        hosts={**once.hosts, "a": own}, vms={**once.vms, "v": msgspec.structs.replace(once.vms["v"], spec=stopped)}
    )
    then = imported(source([host("a"), host("b")], [vm("v", "a", phase="ACTIVE"), vm("w", "b")]), before)
    assert then.vms["v"].spec.power_state == "stopped"


def test_a_renamed_zone_takes_the_vms_along_and_leaves_those_whose_zone_somebody_set() -> None:
    once = imported(source([host("a", zone="nova"), host("b", zone="nova")], [vm("v", "a"), vm("w", "b")]))
    own_zone = msgspec.structs.replace(once.vms["w"].spec, zone="gold")
    vms = {**once.vms, "w": msgspec.structs.replace(once.vms["w"], spec=own_zone)}
    before = Existing(hosts=once.hosts, vms=vms)
    second = source([host("a", zone="az-1"), host("b", zone="az-1")], [vm("v", "a"), vm("w", "b")])
    wanted = check_inventory(second, before, ImportOptions())
    plan = plan_import(wanted, before, ImportOptions(), landed={}, now=NOW)
    _, then = apply_plan(plan, before)
    assert {name: one.spec.zone for name, one in then.items()} == {"v": "az-1", "w": "gold"}
    told = {one.code: one.fields["vms"] for one in find_notices(wanted, before, plan, ()) if "vms" in one.fields}
    assert told[ImportNotice.VM_ZONE_FROM_HOST] == ("v",)
    assert told[ImportNotice.VM_ZONE_KEPT] == ("w",)


def test_hosts_keep_the_name_of_their_source_beside_that_of_their_object() -> None:
    once = imported(source([host("KVM_01"), host("kvm-01")], [vm("Web_1", "KVM_01")]))
    named = {one.status.source_name or one.name: one.name for one in once.hosts.values()}
    assert sorted(named) == ["KVM_01", "kvm-01"]
    assert named["kvm-01"] == "kvm-01"
    made = next(iter(once.vms.values()))
    assert (made.host, made.spec.display_name) == (named["KVM_01"], "Web_1")
    assert (
        imported(source([host("KVM_01"), host("kvm-01")], [vm("Web_1", "KVM_01")]), once).hosts.keys()
        == once.hosts.keys()
    )


def test_no_host_takes_the_object_of_another_one() -> None:
    once = imported(source([host("KVM_01")], []))
    name = next(iter(once.hosts))
    with pytest.raises(BadInputs, match="would be"):
        check_inventory(source([host(name)], []), once, ImportOptions())
    with pytest.raises(BadInputs, match="there twice"):
        check_inventory(source([host("KVM_01"), host(name)], []), Existing(), ImportOptions())


def test_vms_of_more_cores_than_their_host_has_name_the_overcommit() -> None:
    wanted = check_inventory(source([host("a")], [vm(f"v{n}", "a") for n in range(6)]), Existing(), ImportOptions())
    plan = plan_import(wanted, Existing(), ImportOptions(), landed={}, now=NOW)
    told = {one.code: one.fields for one in find_notices(wanted, Existing(), plan, ())}
    assert told[ImportNotice.HOST_OVERFULL]["hosts"] == ("a: cpu 12 of 8",)
    assert told[ImportNotice.HOST_OVERFULL]["overcommit"] == "cpu=1.5"
    assert isinstance(plan.writes[-1].object, Hypervisor | VirtualMachine)
