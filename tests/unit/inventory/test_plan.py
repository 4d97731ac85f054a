"""The writes of an import: what is created, what stays, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.inventory import (
    Existing,
    FlavorRecord,
    HostRecord,
    ImportOptions,
    ImportPlan,
    Inventory,
    VmRecord,
    apply_import,
    check_inventory,
    object_name,
    plan_import,
    read_existing,
)
from outlive.resources import (
    HOST_LABEL,
    ZONE_LABEL,
    Amounts,
    Flavor,
    Holder,
    Hypervisor,
    HypervisorSpec,
    R,
    VirtualMachine,
    find_condition,
)
from outlive.store import MemoryStore

GIB = 2**30
NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = datetime(2026, 3, 2, tzinfo=UTC)


def host(name: str, **facts: object) -> HostRecord:
    return HostRecord(**{"name": name, "place": name, "capacity": Amounts(cpu=8000, memory=32 * GIB), **facts})


def vm(vm_id: str, on: str | None = None, **facts: object) -> VmRecord:
    known = {"id": vm_id, "place": vm_id, "resources": Amounts(cpu=2000, memory=4 * GIB), "host": on, **facts}
    return VmRecord(**known)


def source(hosts: Sequence[HostRecord], vms: Sequence[VmRecord], flavors: Sequence[FlavorRecord] = ()) -> Inventory:
    return Inventory(
        what="csv", hosts=list(hosts), vms=list(vms), flavors=list(flavors), has_hosts=bool(hosts), has_vms=True
    )


def planned(
    inventory: Inventory,
    existing: Existing = Existing(),
    options: ImportOptions = ImportOptions(),
    landed: dict[str, str] | None = None,
    now: datetime = NOW,
) -> ImportPlan:
    wanted = check_inventory(inventory, existing, options)
    return plan_import(wanted, existing, options, landed=landed or {}, now=now)


def found(plan: ImportPlan, kind: type[R], name: str) -> R:
    return next(w.object for w in plan.writes if isinstance(w.object, kind) and w.object.name == name)


def store() -> MemoryStore:
    return MemoryStore(LoopClock(), SeededIds(Random(1)))


def test_flavors_come_first_then_hosts_then_vms_then_deletions() -> None:
    plan = planned(source([host("a"), host("b")], [vm("v", "a"), vm("w", "b")]))
    assert [write.object.kind() for write in plan.writes] == [
        "Flavor", "Hypervisor", "Hypervisor", "VirtualMachine", "VirtualMachine",
    ]  # fmt: skip


def test_a_host_lists_its_vms_and_what_they_need() -> None:
    plan = planned(source([host("a"), host("b")], [vm("v", "a", name="web"), vm("w", "a", phase="SHUTOFF")]))
    status = found(plan, Hypervisor, "a").status
    assert [(one.id, one.name, one.active) for one in status.instances] == [("v", "web", True), ("w", "", False)]
    assert status.allocation is not None
    assert status.allocation.to_wire() == {"cpu": "4", "memory": "8Gi"}
    assert status.num_instances == 2
    empty = found(plan, Hypervisor, "b").status.allocation
    assert empty is not None
    assert empty.to_wire() == {"cpu": "0", "memory": "0"}


def test_what_a_host_says_is_in_use_counts_where_it_is_more() -> None:
    used = Amounts(cpu=500, memory=6 * GIB)
    allocation = found(planned(source([host("a", used=used)], [vm("v", "a")])), Hypervisor, "a").status.allocation
    assert allocation is not None
    assert allocation.to_wire() == {"cpu": "2", "memory": "6Gi"}


def test_hosts_are_labelled_with_zone_and_domains_in_blocks() -> None:
    hosts = [host(f"h{number}", zone="z1") for number in range(5)]
    plan = planned(source(hosts, []), options=ImportOptions(domains=(("rack", 2), ("room", 4))))
    labels = [found(plan, Hypervisor, f"h{number}").metadata.labels for number in range(5)]
    assert [one["outlive.dev/domain-rack"] for one in labels] == [
        "rack-001", "rack-001", "rack-002", "rack-002", "rack-003",
    ]  # fmt: skip
    assert labels[4]["outlive.dev/domain-room"] == "room-002"
    assert labels[0][ZONE_LABEL] == "z1"


def test_overcommit_makes_effective_capacity() -> None:
    status = found(
        planned(source([host("a")], []), options=ImportOptions(overcommit={"cpu": 1.5})), Hypervisor, "a"
    ).status
    assert status.effective_capacity is not None
    assert status.effective_capacity.to_wire() == {"cpu": "12", "memory": "32Gi"}


def test_a_vm_carries_the_label_of_its_host() -> None:
    made = found(planned(source([host("a")], [vm("v", "a")])), VirtualMachine, "v")
    assert made.metadata.labels[HOST_LABEL] == "a"
    assert made.status.assigned is not None
    assert made.status.assigned.hypervisor == "a"


def test_a_landed_vm_is_assigned_and_counted() -> None:
    plan = planned(source([host("a")], [vm("v")]), landed={"v": "a"})
    assert found(plan, VirtualMachine, "v").metadata.labels[HOST_LABEL] == "a"
    assert found(plan, Hypervisor, "a").status.num_instances == 1


def test_a_disabled_or_silent_host_takes_nothing_new() -> None:
    plan = planned(source([host("a", disabled="broken fan", down=True), host("b", disabled="")], []))
    conditions = found(plan, Hypervisor, "a").status.conditions
    disabled, ready = find_condition(conditions, "HypervisorDisabled"), find_condition(conditions, "Ready")
    assert disabled is not None
    assert (disabled.status, disabled.message) == ("True", "broken fan")
    assert ready is not None
    assert ready.status == "False"
    enabled = find_condition(found(plan, Hypervisor, "b").status.conditions, "HypervisorDisabled")
    assert enabled is not None
    assert enabled.status == "False"


def test_flavors_get_dns_names_and_keep_their_own() -> None:
    flavors = [
        FlavorRecord(name=name, place=name, resources=Amounts(cpu=1000, memory=GIB)) for name in ("M1.X", "m1_x")
    ]
    plan = planned(source([], [], flavors))
    names = {
        write.object.name: write.object.spec.flavor_name for write in plan.writes if isinstance(write.object, Flavor)
    }
    assert names["m1.x"] == "M1.X"
    assert names["m1-x"] == "m1_x"


def test_two_flavors_of_one_dns_name_are_told_apart() -> None:
    assert object_name("M1") == "m1"
    assert object_name("m1", {"m1"}) != "m1"
    assert object_name("???") == "flavor"


def test_repeating_an_import_writes_nothing() -> None:
    async def scene() -> tuple[ImportPlan, ImportPlan]:
        there = store()
        inventory = source([host("a", zone="z"), host("b")], [vm("v", "a"), vm("w", "b", phase="ACTIVE")])
        first = planned(inventory, await read_existing(there))
        await apply_import(there, first)
        return first, planned(inventory, await read_existing(there), now=LATER)

    first, second = run(scene())
    assert len(first.writes) == 5
    assert not second.writes
    assert second.unchanged == {"Flavor": 1, "Hypervisor": 2, "VirtualMachine": 2}


def test_only_what_changed_is_written() -> None:
    async def scene() -> ImportPlan:
        there = store()
        await apply_import(there, planned(source([host("a"), host("b")], [vm("v", "a"), vm("w", "a")])))
        return planned(
            source([host("a"), host("b")], [vm("v", "a"), vm("w", "b")]), await read_existing(there), now=LATER
        )

    plan = run(scene())
    assert [(write.verb, write.object.name, write.spec, write.status) for write in plan.writes] == [
        ("update", "a", False, True),
        ("update", "b", False, True),
        ("update", "w", True, True),
    ]


def test_what_operators_set_survives_an_import() -> None:
    async def scene() -> Hypervisor:
        there = store()
        await apply_import(there, planned(source([host("a")], [])))
        old = await there.get(Hypervisor, "a")
        labelled = msgspec.structs.replace(old.metadata, labels={**old.metadata.labels, "team": "blue"})
        spec = HypervisorSpec(maintenance="manual", custom_traits=("CUSTOM_X",))
        await there.replace(msgspec.structs.replace(old, metadata=labelled, spec=spec))
        await apply_import(there, planned(source([host("a", zone="z2")], []), await read_existing(there)))
        return await there.get(Hypervisor, "a")

    after = run(scene())
    assert after.spec.maintenance == "manual"
    assert after.metadata.labels["team"] == "blue"
    assert after.metadata.labels[ZONE_LABEL] == "z2"


def test_a_vm_that_leaves_its_host_loses_the_label_after_the_assignment() -> None:
    async def scene() -> ImportPlan:
        there = store()
        await apply_import(there, planned(source([host("a")], [vm("v", "a")])))
        return planned(source([host("a")], [vm("v", "")]), await read_existing(there))

    write = next(w for w in run(scene()).writes if isinstance(w.object, VirtualMachine))
    assert write.status_first
    assert write.object.status.assigned is None
    assert HOST_LABEL not in write.object.metadata.labels


def test_a_source_that_knows_no_hosts_moves_nobody() -> None:
    async def scene() -> VirtualMachine:
        there = store()
        await apply_import(there, planned(source([host("a")], [vm("v", "a")])))
        await apply_import(there, planned(source([], [vm("v", project="p2")]), await read_existing(there)))
        return await there.get(VirtualMachine, "v")

    after = run(scene())
    assert after.spec.project == "p2"
    assert after.status.assigned is not None


def test_of_a_vm_that_a_host_holds_an_import_says_nothing_but_what_it_is() -> None:
    async def scene() -> tuple[VirtualMachine, VirtualMachine]:
        there = store()
        await apply_import(there, planned(source([host("a"), host("b")], [vm("v", "a", phase="ACTIVE")])))
        before = await there.get(VirtualMachine, "v")
        entry = Holder(hypervisor="a", member_uid="u", epoch=1, run_id="r")
        status = msgspec.structs.replace(before.status, phase="start", holders=(entry,))
        before = await there.replace_status(msgspec.structs.replace(before, status=status))
        moved = source([host("a"), host("b")], [vm("v", "b", phase="SHUTOFF", project="p2")])
        await apply_import(there, planned(moved, await read_existing(there), now=LATER))
        return before, await there.get(VirtualMachine, "v")

    before, after = run(scene())
    assert after.status == before.status
    assert after.metadata.labels[HOST_LABEL] == "a"
    assert after.spec.project == "p2"


def test_pruning_deletes_vms_before_hosts_and_empties_the_hosts_that_stay() -> None:
    async def scene() -> ImportPlan:
        there = store()
        await apply_import(there, planned(source([host("a"), host("b")], [vm("v", "a"), vm("w", "b"), vm("x", "a")])))
        return planned(source([host("a")], [vm("v", "a")]), await read_existing(there), ImportOptions(prune=True))

    plan = run(scene())
    assert [(write.verb, write.object.name) for write in plan.writes] == [
        ("update", "a"), ("delete", "w"), ("delete", "x"), ("delete", "b"),
    ]  # fmt: skip


class FailingAfter:
    """A store that lets so many writes through and then is gone."""

    def __init__(self, inner: MemoryStore, writes: int) -> None:
        self._inner = inner
        self._left = writes

    def __getattr__(self, name: str) -> object:
        if name in ("create", "replace", "replace_status", "delete"):
            self._left -= 1
            if self._left < 0:
                raise Unavailable("the store is gone")
        return getattr(self._inner, name)


@pytest.mark.slow
@given(st.integers(min_value=0, max_value=60))
def test_an_import_that_broke_off_is_completed_by_repeating_it(writes: int) -> None:
    inventory = source([host(f"h{n:02}") for n in range(12)], [vm(f"v{n:02}", f"h{n % 12:02}") for n in range(20)])

    async def scene() -> tuple[bool, ImportPlan]:
        there = store()
        failed = False
        try:
            await apply_import(FailingAfter(there, writes), planned(inventory))
        except Unavailable as error:
            failed = "repeat" in error.remedy
        await apply_import(there, planned(inventory, await read_existing(there)))
        return failed, planned(inventory, await read_existing(there))

    failed, left = run(scene())
    assert failed
    assert not left.writes
