"""The comparison of everything: each disagreement is found once, named, and repaired only where nothing is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from tests.support.commitments import make_spec
from tests.support.placement import commitment as slot_of

from outlive.commitments import (
    OWNERS,
    Commitment,
    CommitmentDisagreement,
    ConsistencyInput,
    DisagreementKind,
    Repair,
    VmFacts,
    compare,
    from_spec,
)
from outlive.resources import Amounts, CommittedResource, CommittedResourceStatus, ObjectMeta, Reservation

NOW = 100_000.0
OLD = datetime.fromtimestamp(NOW - 9000, UTC)
HOSTS: dict[str, tuple[str, ...]] = {"h1": (), "h2": ()}


def cr(uuid: str = "uuid-1", amount: str = "16Gi", state: Any = "confirmed", **status: Any) -> CommittedResource:
    spec = make_spec(uuid, amount, state=state)
    return CommittedResource(
        metadata=ObjectMeta(name=f"commitment-{uuid}", creation_timestamp=OLD),
        spec=spec,
        status=CommittedResourceStatus(accepted_spec=spec, **status),
    )


def slot(
    name: str = "s", on: str = "h1", uuid: str = "uuid-1", *, created: datetime = OLD, **fields: Any
) -> Reservation:
    made = slot_of(name, on, **fields)
    details = made.spec.committed_resource_reservation
    assert details is not None
    allocations = {vm: replace(one, creation_timestamp=created) for vm, one in details.allocations.items()}
    details = replace(details, commitment_uuid=uuid, allocations=allocations)
    return replace(
        made,
        metadata=replace(made.metadata, creation_timestamp=created),
        spec=replace(made.spec, committed_resource_reservation=details),
    )


def listed(*given: CommittedResource, **fields: Any) -> dict[str, Commitment]:
    return {one.spec.commitment_uuid: replace(from_spec(one.spec), **fields) for one in given}


def found(**fields: Any) -> list[CommitmentDisagreement]:
    given: dict[str, Any] = {"instances": HOSTS, "vms": {}, "now": NOW, "grace_s": 900, **fields}
    return list(compare(ConsistencyInput(**given)).disagreements)


def kinds(**fields: Any) -> list[tuple[DisagreementKind, Repair | None]]:
    return [(one.kind, one.repair) for one in found(**fields)]


def test_where_everything_agrees_nothing_is_found() -> None:
    used = slot(meant={"v": ("4", "16Gi")}, seen=("v",))
    mine = cr(assigned_instances=("v",), used_resources=Amounts(cpu=4000, memory=16 * 2**30))
    result = compare(
        ConsistencyInput(
            listed=listed(mine),
            commitments=(mine,),
            slots=(used,),
            instances={"h1": ("v",)},
            vms={"v": VmFacts(host="h1", project="p")},
            now=NOW,
            grace_s=900,
        )
    )
    assert result.disagreements == ()
    assert set(result.counts) == set(DisagreementKind)
    assert set(OWNERS) == set(DisagreementKind)


def test_what_limes_lists_and_we_do_not_have_is_synced() -> None:
    assert kinds(listed=listed(cr())) == [(DisagreementKind.NOT_SYNCED, Repair.SYNC)]
    assert kinds(listed=listed(cr(), state="expired")) == []


def test_what_limes_does_not_list_is_left_to_people_and_nothing_is_said_where_it_did_not_answer() -> None:
    assert kinds(listed={}, commitments=(cr(),), slots=(slot(),)) == [(DisagreementKind.NOT_LISTED, None)]
    assert kinds(listed={}, protected=("uuid-1",), commitments=(cr(),), slots=(slot(),)) == []
    assert kinds(commitments=(cr(),), slots=(slot(),)) == []


def test_other_amounts_and_another_zone_are_synced() -> None:
    mine = cr()
    other = listed(mine, memory_bytes=32 * 2**30)
    assert kinds(listed=other, commitments=(mine,), slots=(slot(),)) == [(DisagreementKind.DIFFERS, Repair.SYNC)]
    moved = listed(mine, zone="z2")
    assert kinds(listed=moved, commitments=(mine,), slots=(slot(),)) == [(DisagreementKind.ZONE_DIFFERS, Repair.SYNC)]


def test_slots_of_commitments_that_are_over_or_of_another_size_are_worked_out_again() -> None:
    over = cr(state="expired")
    assert kinds(commitments=(over,), slots=(slot(),)) == [(DisagreementKind.OVER_WITH_SLOTS, Repair.RECONCILE)]
    assert kinds(commitments=(cr(),)) == [(DisagreementKind.SLOTS_SHORT, Repair.RECONCILE)]
    assert kinds(commitments=(cr(),), slots=(slot(), slot("t"))) == [(DisagreementKind.SLOTS_EXCESS, Repair.RECONCILE)]
    assert kinds(commitments=(cr(),), slots=(slot(project="q"),)) == [(DisagreementKind.SLOT_DIFFERS, Repair.RECONCILE)]
    assert kinds(commitments=(cr(),), slots=(slot(on="h9"),)) == [
        (DisagreementKind.SLOT_ON_UNKNOWN_HOST, Repair.VERIFY_SLOT)
    ]


def test_an_orphaned_slot_goes_only_if_limes_does_not_list_it_and_no_vm_is_in_it() -> None:
    assert kinds(listed={}, slots=(slot(),)) == [(DisagreementKind.ORPHAN_SLOT, Repair.DELETE_SLOT)]
    assert kinds(slots=(slot(),)) == [(DisagreementKind.ORPHAN_SLOT, None)]
    assert kinds(listed={}, protected=("uuid-1",), slots=(slot(),)) == [(DisagreementKind.ORPHAN_SLOT, None)]
    used = slot(meant={"v": ("1", "1Gi")}, seen=("v",))
    vms = {"v": VmFacts(host="h1", project="p")}
    assert kinds(listed={}, slots=(used,), instances={"h1": ("v",)}, vms=vms) == [(DisagreementKind.ORPHAN_SLOT, None)]
    assert kinds(listed={}, slots=(slot(created=datetime.fromtimestamp(NOW - 1, UTC)),)) == []


def test_allocations_of_unknown_and_foreign_vms_are_dropped_and_misplaced_ones_verified() -> None:
    used = slot(meant={"v": ("1", "1Gi")}, seen=("v",))
    base: dict[str, Any] = {"commitments": (cr(),), "slots": (used,)}
    assert kinds(**base) == [(DisagreementKind.UNKNOWN_VM, Repair.DROP_ALLOCATION)]
    foreign = {"v": VmFacts(host="h1", project="q")}
    assert kinds(**base, vms=foreign, instances={"h1": ("v",)}) == [
        (DisagreementKind.FOREIGN_VM, Repair.DROP_ALLOCATION)
    ]
    ours = {"v": VmFacts(host="h2", project="p")}
    away: dict[str, tuple[str, ...]] = {"h1": (), "h2": ("v",)}
    assert kinds(**base, vms=ours, instances=away) == [(DisagreementKind.CONFIRMED_ELSEWHERE, Repair.VERIFY_SLOT)]
    assert kinds(**base, vms=ours, instances=away, moving=("v",)) == []
    assert kinds(**base, vms=None) == [(DisagreementKind.CONFIRMED_ELSEWHERE, Repair.VERIFY_SLOT)]


def test_a_vm_in_two_slots_stays_in_the_one_where_it_runs() -> None:
    meant = {"v": ("1", "1Gi")}
    slots = (slot("a", "h2", meant=meant), slot("b", "h1", meant=meant, seen=("v",)))
    (one,) = found(
        commitments=(cr(amount="32Gi"),),
        slots=slots,
        instances={"h1": ("v",), "h2": ()},
        vms={"v": VmFacts(host="h1", project="p")},
    )
    assert (one.kind, one.subject, one.vm, one.repair) == (
        DisagreementKind.ALLOCATED_TWICE,
        "a",
        "v",
        Repair.DROP_ALLOCATION,
    )
    assert one.safe


def test_wrong_charges_are_counted_anew() -> None:
    used = Amounts(cpu=1000, memory=17 * 2**30)
    given = (cr(assigned_instances=("v",)), cr("uuid-2", assigned_instances=("v", "w"), used_resources=used))
    slots = (slot(), slot("t", uuid="uuid-2"))
    result = found(commitments=given, slots=slots, vms={"v": VmFacts(host="")})
    assert {(one.kind, one.subject, one.vm) for one in result} == {
        (DisagreementKind.CHARGED_TWICE, "uuid-2", "v"),
        (DisagreementKind.CHARGED_UNKNOWN, "uuid-2", "w"),
        (DisagreementKind.OVERCHARGED, "uuid-2", ""),
    }
    assert {one.repair for one in result} == {Repair.COUNT_USAGE}


def test_what_hosts_and_the_list_of_vms_say_differently_is_left_to_people() -> None:
    assert kinds(instances={"h1": ("v", "w")}, vms={"w": VmFacts(host="h2")}) == [
        (DisagreementKind.VM_NOT_LISTED, None),
        (DisagreementKind.VM_ON_OTHER_HOST, None),
    ]
    assert kinds(instances={"h1": ("v",)}, vms={}, moving=("v",)) == []
    assert kinds(instances={"h1": ("v",)}, vms=None) == []
