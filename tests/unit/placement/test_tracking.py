"""The account of commitments gets all answers; a VM counts once, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run
from tests.support.placement import commitment, fleet_of, host, in_flight, instances, request

from outlive.base import LoopClock, Random
from outlive.placement import (
    SILENT,
    Fleet,
    PipelineTable,
    PlacementService,
    PlacementSettings,
    PlacementTracker,
    Ranking,
    TrackingOutcome,
    decode_request,
    encode_request,
)
from outlive.resources import Hypervisor, InFlightSpec, Reservation
from outlive.runtime import Metrics

GIB = 2**30


class Account:
    """Remembers what it was told."""

    def __init__(self, outcome: TrackingOutcome | None) -> None:
        self.told: list[tuple[str, str, tuple[str, ...]]] = []
        self._outcome = outcome

    def track(self, ranking: Ranking, hosts: Sequence[str]) -> TrackingOutcome | None:
        asked = ranking.run.request
        self.told.append((asked.resource_id, asked.caller_project or asked.project, tuple(hosts)))
        return self._outcome


class Broken:
    def track(self, ranking: Ranking, hosts: Sequence[str]) -> TrackingOutcome | None:
        raise LookupError("no such slot")


def answered(tracker: PlacementTracker, *, gate: bool = True) -> str:
    """Two calls, one of which finds nothing, and a silent one; the metrics after them."""
    metrics = Metrics()

    async def story() -> None:
        settings = PlacementSettings(committed_resource_tracking=gate)
        service = PlacementService(
            Fleet(settings), PipelineTable.with_shipped(), clock=LoopClock(), random=Random(0), metrics=metrics
        )
        service.tracker = tracker
        service.fleet.upsert_host(host("a"))
        asked = request(extraSpecs={"capabilities:hypervisor_type": "QEMU", "quota:hw_version": "g"})
        await service.rank(replace(asked, caller_project="q"))
        await service.rank(replace(asked, resource_id="vm-2", zone="z9"))
        await service.rank(replace(asked, resource_id="vm-3", options=SILENT))

    run(story())
    return metrics.render().decode()


def test_each_answer_that_may_use_a_slot_is_told() -> None:
    account = Account(TrackingOutcome("g", "slot_used"))
    text = answered(account)
    assert account.told == [("vm-1", "q", ("a",)), ("vm-2", "p", ())]
    assert 'outlive_nova_placement_total{cr_slot="slot_used",flavor_group="g",intent="unknown"} 1.0' in text
    assert 'outlive_nova_no_host_found_total{cr_slot="slot_used",flavor_group="g",intent="unknown"} 1.0' in text


def test_a_flavor_in_no_group_is_not_counted() -> None:
    assert "outlive_nova_placement_total{" not in answered(Account(None))


def test_nobody_is_told_unless_it_is_switched_on() -> None:
    account = Account(TrackingOutcome("g", "slot_used"))
    assert 'outlive_nova_placement_total{cr_slot="no_cr"' in answered(account, gate=False)
    assert account.told == []


def test_an_account_that_fails_is_counted_and_the_answer_stands() -> None:
    assert 'outlive_nova_placement_total{cr_slot="error",flavor_group="unknown",intent="unknown"} 1.0' in answered(
        Broken()
    )


def test_the_project_that_calls_is_read_where_it_is_another_one() -> None:
    asked = request(hosts=["a"])
    assert decode_request(encode_request(asked)).caller_project == ""
    assert decode_request(encode_request(replace(asked, caller_project="q"))).caller_project == "q"


def free(fleet: Fleet, name: str = "h1") -> tuple[int, int]:
    """Whole cores and GiB that are free on a host."""
    cpu, memory = fleet.free_amounts()[fleet.index[name]].tolist()
    return cpu // 1000, memory // GIB


def test_a_vm_in_flight_to_its_slot_counts_once() -> None:
    slot = commitment("c", cpu="8", memory="32Gi", meant={"v": ("2", "8Gi")})
    fleet = fleet_of(host(), slot)
    assert free(fleet) == (8, 32)
    room = in_flight("i", vm="v", cpu="2", memory="8Gi")
    fleet.upsert_reservation(room)
    assert free(fleet) == (8, 32)
    elsewhere = in_flight("i", on="h2", vm="v", cpu="2", memory="8Gi")
    fleet.upsert_reservation(elsewhere)
    assert free(fleet) == (8, 32)
    fleet.upsert_reservation(room)
    fleet.remove_reservation("i")
    assert free(fleet) == (8, 32)
    large = commitment("c", cpu="8", memory="32Gi", meant={"v": ("10", "40Gi")})
    fleet.upsert_reservation(large)
    assert free(fleet) == (6, 24)
    fleet.upsert_reservation(in_flight("i", vm="v", cpu="10", memory="40Gi"))
    assert free(fleet) == (6, 24)


def test_a_vm_in_flight_that_its_host_reports_counts_once() -> None:
    fleet = fleet_of(host(), in_flight("i", vm="v", cpu="16", memory="64Gi"))
    assert free(fleet) == (0, 0)
    fleet.upsert_host(host(instances=instances("v"), allocation={"cpu": "16", "memory": "64Gi"}))
    assert free(fleet) == (0, 0)
    assert fleet.overbooked_amounts("h1") == {}
    fleet.upsert_host(host())
    assert free(fleet) == (0, 0)


@pytest.mark.parametrize("details", [InFlightSpec(vm_id="v", intent="resize"), InFlightSpec(vm_id="v", instances=2)])
def test_a_vm_that_grows_where_it_runs_holds_its_new_size_until_it_has_it(details: InFlightSpec) -> None:
    room = in_flight("i", vm="v", cpu="4", memory="16Gi")
    fleet = fleet_of(
        host(instances=instances("v")), replace(room, spec=replace(room.spec, in_flight_reservation=details))
    )
    assert free(fleet) == (12, 48)


THINGS = st.one_of(
    st.builds(
        lambda name, on, vm: in_flight(f"i{name}", on=on, vm=vm),
        st.integers(0, 2), st.sampled_from(["h1", "h2"]), st.sampled_from(["v", "w"]),
    ),
    st.builds(
        lambda name, on, meant, seen: commitment(
            f"c{name}", on=on, meant=dict.fromkeys(meant, ("2", "8Gi")), seen=tuple(seen)
        ),
        st.integers(0, 1), st.sampled_from(["h1", "h2"]), st.sets(st.sampled_from(["v", "w", "x"])),
        st.sets(st.sampled_from(["v", "w"])),
    ),
    st.builds(
        lambda name, vms: host(name, instances=instances(*sorted(vms))),
        st.sampled_from(["h1", "h2"]), st.sets(st.sampled_from(["v", "w"])),
    ),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.tuples(THINGS, st.booleans()), max_size=14))
def test_what_is_held_does_not_depend_on_the_order_of_events(
    events: list[tuple[Hypervisor | Reservation, bool]],
) -> None:
    fleet, last = Fleet(), {}
    for thing, gone in events:
        if isinstance(thing, Hypervisor):
            fleet.upsert_host(thing)
            last[thing.name] = thing
        elif gone:
            fleet.remove_reservation(thing.name)
            last.pop(thing.name, None)
        else:
            fleet.upsert_reservation(thing)
            last[thing.name] = thing
    hosts = [one for one in last.values() if isinstance(one, Hypervisor)]
    fresh = fleet_of(*hosts, *(one for one in last.values() if isinstance(one, Reservation)))
    assert {name: free(fleet, name) for name in fleet.names} == {name: free(fresh, name) for name in fresh.names}
    assert fleet.ledger.in_flight_count == fresh.ledger.in_flight_count
