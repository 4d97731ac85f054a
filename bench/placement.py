"""Placement: rankings a second over 5,000 hosts, in process, and the cost of reading a request with all of them.

The fleet is one of mixed sizes and loads, with a failover slot on every host, so that all sixteen filters and five
weighers of the general-purpose pipeline have something to do and most hosts survive, which is the slow case.
``world`` and ``nova_body`` serve the figures over HTTP as well (bench/api.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec

from bench.figures import Figure
from outlive.base.random import Random
from outlive.placement.engine import Engine
from outlive.placement.external import decode_request, encode_request
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.request import Intent, PlacementRequest
from outlive.resources import (
    FAILOVER,
    ZONE_LABEL,
    Amounts,
    Capabilities,
    Condition,
    DomainCapabilities,
    FailoverSpec,
    FailoverStatus,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
)

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
    return Engine(fleet, PipelineTable.shipped())


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
