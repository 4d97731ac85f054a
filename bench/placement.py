"""Placement: rankings a second over 5,000 hosts, in process, and the cost of reading a request with all of them.

The fleet is one of mixed sizes and loads, with a failover slot on every host, so that all sixteen filters and five
weighers of the general-purpose pipeline have something to do and most hosts survive, which is the slow case.
``world`` and ``nova_body`` serve the figures over HTTP as well (bench/api.py). ``everything`` is placement as a cloud
runs it: with quota, commitments and their account, room in flight, and history.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from bench.figures import Figure
from outlive.base import Clock, LoopClock, Random, SeededIds
from outlive.placement import (
    Engine,
    Fleet,
    HistoryWriter,
    InFlightWriter,
    Intent,
    PipelineTable,
    PlacementRequest,
    PlacementService,
    PlacementSettings,
    Ranking,
    TrackingOutcome,
    decode_request,
    encode_request,
    own_reservations,
)
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    ZONE_LABEL,
    Amounts,
    Capabilities,
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    CommittedSpec,
    Condition,
    DomainCapabilities,
    FailoverSpec,
    FailoverStatus,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
    Reservation,
    ReservationSpec,
    ReservationStatus,
)
from outlive.runtime import Metrics
from outlive.store import MemoryStore

HOSTS = 5_000
PIPELINE = "kvm-general-purpose-load-balancing"
GIB = 2**30
_BATCH = 100
_BATCHES = 15


def hypervisors(count: int = HOSTS) -> list[Hypervisor]:
    """Hosts of three sizes and any load."""
    random = Random(5)
    made: list[Hypervisor] = []
    for number in range(count):
        size = Amounts(cpu=random.choice([64, 96, 128]) * 1000, memory=random.choice([512, 768, 1024]) * GIB)
        used = Amounts(cpu=random.randrange(40) * 1000, memory=random.randrange(300 * 1024) * 2**20)
        status = HypervisorStatus(
            capacity=size,
            effective_capacity=size,
            allocation=used,
            traits=("COMPUTE_NET", "CUSTOM_NVME"),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            capabilities=Capabilities(cpu_arch="x86_64"),
            conditions=(Condition(type="Ready", status="True"),),
            instances=tuple(Instance(id=f"vm-{number}-{one}") for one in range(10)),
        )
        meta = ObjectMeta(name=f"host-{number:05}", labels={ZONE_LABEL: "north-1"})
        made.append(Hypervisor(metadata=meta, status=status))
    return made


def slots(count: int = HOSTS) -> list[Reservation]:
    """One failover slot on every host."""
    made: list[Reservation] = []
    for number in range(count):
        host = f"host-{number:05}"
        spec = ReservationSpec(
            type=FAILOVER,
            target_host=host,
            resources=Amounts(cpu=4000, memory=16 * GIB),
            failover_reservation=FailoverSpec(resource_group="m"),
        )
        members = {f"vm-{(number + 7) % count}-0": f"host-{(number + 7) % count:05}"}
        status = ReservationStatus(host=host, failover_reservation=FailoverStatus(allocations=members))
        made.append(Reservation(metadata=ObjectMeta(name=f"slot-{number:05}"), spec=spec, status=status))
    return made


def world(count: int = HOSTS) -> Engine:
    """The engine over that fleet."""
    fleet = Fleet()
    for host in hypervisors(count):
        fleet.upsert_host(host)
    for slot in slots(count):
        fleet.upsert_reservation(slot)
    return Engine(fleet, PipelineTable.with_shipped())


def ask(number: int, intent: Intent = Intent.UNKNOWN) -> PlacementRequest:
    """An ordinary VM; each number is another one."""
    return PlacementRequest(
        resource_id=f"vm-{number}",
        project="p-blue",
        zone="north-1",
        need=Amounts(cpu=(1 + number % 4) * 1000, memory=(1 + number % 4) * 4 * GIB),
        flavor_name="m",
        extra_specs={
            "capabilities:hypervisor_type": "QEMU",
            "trait:CUSTOM_NVME": "required",
            "quota:hw_version": "m",
        },
        intent=intent,
        pipeline=PIPELINE,
    )


COMMITMENTS = 500
"""Of the project that asks, each with one slot."""


def commitments() -> list[CommittedResource | ProjectQuota]:
    """Commitments and quota of the project that asks."""
    made: list[CommittedResource | ProjectQuota] = [
        CommittedResource(
            metadata=ObjectMeta(name=f"commitment-{number}"),
            spec=CommittedResourceSpec(
                commitment_uuid=str(number),
                flavor_group_name="m",
                resource_type="memory",
                amount="16Gi",
                availability_zone="north-1",
                project_id="p-blue",
                state="confirmed",
            ),
            status=CommittedResourceStatus(used_resources=Amounts(memory=12 * GIB)),
        )
        for number in range(COMMITMENTS)
    ]
    limits = {"hw_version_m_ram": 10**6, "hw_version_m_cores": 10**6, "hw_version_m_instances": 10**6}
    spec = ProjectQuotaSpec(project_id="p-blue", availability_zone="north-1", quota=limits)
    return [*made, ProjectQuota(metadata=ObjectMeta(name="quota"), spec=spec)]


def commitment_slots() -> list[Reservation]:
    """One slot for each commitment."""
    details = CommittedSpec(resource_group="m", project_id="p-blue")
    ready = (Condition(type="Ready", status="True"),)
    return [
        Reservation(
            metadata=ObjectMeta(name=f"committed-{number:05}"),
            spec=ReservationSpec(
                type=COMMITTED,
                target_host=f"host-{7 * number:05}",
                availability_zone="north-1",
                resources=Amounts(cpu=4000, memory=16 * GIB),
                committed_resource_reservation=details,
            ),
            status=ReservationStatus(host=f"host-{7 * number:05}", conditions=ready),
        )
        for number in range(COMMITMENTS)
    ]


class Account:
    """Finds the slots of the project on the selected host, as the account of commitments does."""

    def track(self, ranking: Ranking, hosts: Sequence[str]) -> TrackingOutcome | None:
        """Whether a slot is there."""
        fleet, asked = ranking.run.fleet, ranking.run.request
        bucket = fleet.ledger.commitments.get((asked.project, asked.group_name(fleet.settings.flavor_group_keys)))
        row = fleet.row_of(hosts[0]) if hosts else None
        here = [one.name for one in bucket.entries.values() if row in one.rows] if bucket is not None else []
        return TrackingOutcome("m", "slot_used" if here else "slot_missed")


def everything(clock: Clock, store: MemoryStore) -> PlacementService:
    """Placement with all that follows from an answer."""
    fleet = Fleet(PlacementSettings(committed_resource_tracking=True))
    for host in hypervisors():
        fleet.upsert_host(host)
    for slot in (*slots(), *commitment_slots()):
        fleet.upsert_reservation(slot)
    for one in commitments():
        if isinstance(one, CommittedResource):
            fleet.quotas.upsert_commitment(one)
        else:
            fleet.quotas.upsert_quota(one)
    service = PlacementService(fleet, PipelineTable.with_shipped(), clock=clock, random=Random(1), metrics=Metrics())
    service.in_flight = InFlightWriter(store, fleet, lambda _: None, clock=clock)
    service.history = HistoryWriter(store, clock=clock)
    service.tracker = Account()
    return service


async def with_all_steps() -> tuple[float, float]:
    """Median seconds of a call with all steps on: until it is answered, and until all of it is written as well."""
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    service = everything(clock, store)
    answered: list[float] = []
    written: list[float] = []
    assert service.in_flight is not None
    assert service.history is not None
    for batch in range(_BATCHES + 1):
        asked = [ask(number) for number in range(batch * _BATCH, (batch + 1) * _BATCH)]
        start = time.perf_counter()
        for one in asked:
            _ = (await service.rank(one)).hosts
        answered.append((time.perf_counter() - start) / _BATCH)
        await service.in_flight.flush()
        await service.history.flush()
        written.append((time.perf_counter() - start) / _BATCH)
        for one in asked if batch % 5 == 4 else ():  # so many VMs arrive
            for name in own_reservations(service.fleet, one.resource_id):
                service.fleet.remove_reservation(name)
    assert service.in_flight.dropped == service.history.dropped == 0
    return statistics.median(answered[1:]), statistics.median(written[1:])


def nova_body(number: int, hosts: tuple[str, ...] = ()) -> bytes:
    """The same request as Nova sends it, with these hosts in the body."""
    asked = msgspec.structs.replace(ask(number), hosts=hosts, weights=tuple(float(at % 7) for at in range(len(hosts))))
    return encode_request(asked)


def measure() -> list[Figure]:
    """The in-process figures."""
    engine = world()
    ordinary = [ask(number) for number in range(_BATCH)]
    evacuations = [ask(number, Intent.EVACUATE) for number in range(_BATCH)]
    per_run = _median(lambda: [engine.rank(one).hosts for one in ordinary])
    per_evacuation = _median(lambda: [engine.rank(one).hosts for one in evacuations])
    answered, written = asyncio.run(with_all_steps())
    body = nova_body(1, engine.fleet.names)
    decoded = _median(lambda: [decode_request(body) for _ in range(20)], per=20)
    why = _median(lambda: engine.rank(msgspec.structs.replace(ask(1), zone="south-1"), why=True), per=1)
    return [
        Figure(
            f"placement, {HOSTS:,} hosts, general-purpose pipeline, in process",
            1 / per_run,
            "rankings/s",
            1_000,
            "higher",
            "all host names taken; every host survives",
        ),
        Figure(
            f"placement, {HOSTS:,} hosts, evacuations, in process", 1 / per_evacuation, "rankings/s", None, "higher"
        ),
        Figure(
            f"placement, {HOSTS:,} hosts, all steps on, in process",
            1 / answered,
            "rankings/s",
            1_000,
            "higher",
            f"quota, {COMMITMENTS} commitments and slots, account, room in flight, history with explanation",
        ),
        Figure(
            "placement, the same, all of it written to a store in memory", 1 / written, "rankings/s", None, "higher"
        ),
        Figure(f"placement, reading a request of {len(body) // 1000} kB with all hosts", decoded * 1e3, "ms"),
        Figure(f"placement, a reason for each of {HOSTS:,} refused hosts", why * 1e3, "ms"),
    ]


def _median(work: Callable[[], object], *, per: int = _BATCH) -> float:
    """Median seconds of one of the ``per`` things that ``work`` does."""
    work()
    times: list[float] = []
    for _ in range(_BATCHES):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) / per)
    return statistics.median(times)


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.what}: {figure.value:.1f} {figure.unit}")
