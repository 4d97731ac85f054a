"""Explanations: one uncovered VM in a large fleet, and all of them at once.

What is the same for all VMs (reading, indexing, counters) is gathered before and told as a figure of its own; what is
timed is all that one question costs, placement's answer and the search for a remedy included.
"""

from __future__ import annotations

import statistics
import time

import msgspec

from bench.failover_cloud import GIB, ZONE, Cloud, vm_view
from bench.figures import Figure
from outlive.failover import Caller, HostView, ResolvedSize, SlotView, free_capacity
from outlive.failover.analysis.explain import (
    AnswerSource,
    ExplainedFleet,
    Explainer,
    PlacementAnswer,
    answer_of,
    explain_fleet,
)
from outlive.failover.planner.plan import plan
from outlive.placement import VmView
from outlive.resources import (
    Amounts,
    FailoverStatus,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
)

HOSTS, VMS, QUESTIONS = 5_000, 100_000, 40
SHOWN = 20


class _Asked(AnswerSource):
    """Placement's answers, asked anew each time."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def find_answer(self, vm: VmView, size: ResolvedSize) -> PlacementAnswer:
        return answer_of(self._cloud.engine, Caller(), vm, size)


def measure() -> list[Figure]:
    cloud = Cloud(VMS, HOSTS, 2, (1, 2, 4, 8), even=False)
    slots = plan(msgspec.structs.replace(cloud.plan_input(), packing=False)).slots
    for slot in slots:
        cloud.fleet.upsert_reservation(reservation(slot))
    odd = uncovered(cloud)
    state = ExplainedFleet(
        vms=(*cloud.vms, *odd),
        required={**cloud.required, **dict.fromkeys((vm.id for vm in odd), 2)},
        slots=slots,
        hosts=tuple(HostView(name=name, zone=ZONE) for name in cloud.names),
        free=free_capacity(cloud.fleet),
        capacity=dict.fromkeys(cloud.names, (192000, 1024 * GIB)),
    )
    start = time.perf_counter()
    explainer = Explainer(state, _Asked(cloud))
    assert explainer.model.slots
    gathered = time.perf_counter() - start
    explainer.explain(odd[0].id, shown=SHOWN)
    times: list[float] = []
    kinds: set[str] = set()
    for vm in odd:
        start = time.perf_counter()
        told = explainer.explain(vm.id, shown=SHOWN)
        times.append(time.perf_counter() - start)
        assert told.remedy is not None
        kinds.add(f"{told.reason}: {told.remedy.kind}")
    start = time.perf_counter()
    groups = explain_fleet(Explainer(state, _Remembered(cloud))).groups
    fleet = time.perf_counter() - start
    worst = 1000 * max(times)
    what = f"{len(slots)} slots; worst of {QUESTIONS} {worst:.0f} ms; {'; '.join(sorted(kinds))}"
    return [
        Figure(
            "explain an uncovered VM, 5,000 hosts and 100,000 VMs", statistics.median(times) * 1000, "ms", 50, note=what
        ),
        Figure("index of that fleet for explanations and trials", gathered, "s", note="no bar; once for all questions"),
        Figure("explain all its uncovered VMs, index included", fleet, "s", note=f"no bar; {len(groups)} groups"),
    ]


class _Remembered(_Asked):
    """The same, each kind of VM once."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._known: dict[object, PlacementAnswer] = {}

    def find_answer(self, vm: VmView, size: ResolvedSize) -> PlacementAnswer:
        key = (vm.host, vm.flavor, vm.zone, size, tuple(vm.extra_specs.items()))
        if key not in self._known:
            self._known[key] = super().find_answer(vm, size)
        return self._known[key]


def uncovered(cloud: Cloud) -> list[VmView]:
    """VMs that nothing was planned for: too large, in need of a trait, in another zone, and ordinary ones."""
    found = []
    for number in range(QUESTIONS):
        host = cloud.names[number * 97 % HOSTS]
        vm = vm_view(f"odd-{number:02}", host, (4, 240, 4, 4)[number % 4])
        if number % 4 == 2:
            vm = msgspec.structs.replace(vm, extra_specs={"trait:CUSTOM_RARE": "required"})
        if number % 4 == 3:
            vm = msgspec.structs.replace(vm, zone="elsewhere")
        found.append(vm)
    return found


def reservation(slot: SlotView) -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name=slot.name),
        spec=ReservationSpec(
            type="FailoverReservation",
            target_host=slot.host,
            resources=Amounts(cpu=slot.cpu_milli, memory=slot.memory_bytes),
        ),
        status=ReservationStatus(host=slot.host, failover_reservation=FailoverStatus(allocations=slot.members)),
    )
