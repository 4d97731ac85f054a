"""Random fleets as resources, planned and written by the product, and certificates of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from outlive.base import Random, SeededIds, SystemClock
from outlive.cli import all_objects
from outlive.failover import (
    Certificate,
    CertifyResult,
    FailoverConfig,
    FailoverUpkeepSettings,
    certify,
    certify_input,
    encode_certificate,
    gather,
    plan_input,
)
from outlive.failover.planner.plan import plan
from outlive.failover.reconciler import SlotWriter, write_plan
from outlive.resources import (
    Amounts,
    Assigned,
    Instance,
    Resource,
    State,
    VirtualMachineStatus,
    decode_state,
    encode,
    encode_state,
)
from outlive.roles import RoleSettings
from outlive.store import MemoryStore
from tests.support.small_clouds import make_host, make_vm

GIB = 2**30
TAKEN_AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NEEDS = {"f*": 2, "one*": 1, "none*": 0}
"""Slots by flavor, for the flavors of ``fleet``."""


def settings(needs: dict[str, int] | None = None, *, unit: str = "host") -> RoleSettings:
    return RoleSettings(
        failover=FailoverConfig(flavor_failover_requirements=NEEDS if needs is None else needs).apply_defaults(),
        upkeep=FailoverUpkeepSettings(failure_unit=unit),
    )


def fleet(random: Random, hosts: int, vms: int, *, racks: int = 0) -> list[Resource]:
    """Hosts with room and VMs of several flavors; a few are stopped, a few run nowhere."""
    names = [f"h{number:02}" for number in range(hosts)]
    running: dict[str, list[Instance]] = {name: [] for name in names}
    used = dict.fromkeys(names, 0)
    objects: list[Resource] = []
    for number in range(vms):
        size, host = random.choice((1, 2, 4)), random.choice(names)
        kind = random.choice(("f", "f", "f", "one", "none"))
        name, stopped, nowhere = f"v{number:03}", random.random() < 0.04, random.random() < 0.04
        assigned = None if nowhere else Assigned(hypervisor=host)
        status = VirtualMachineStatus(phase="ACTIVE", assigned=assigned, observed_at=TAKEN_AT)
        objects.append(make_vm(name, cpu=1000 * size, memory=4 * GIB * size, status=status, flavor=f"{kind}{size}"))
        if not nowhere:
            running[host].append(Instance(id=name, active=not stopped))
            used[host] += size
    for number, name in enumerate(names):
        domains = {"rack": f"r{number % racks}"} if racks else {}
        taken = Amounts(cpu=1000 * used[name], memory=4 * GIB * used[name])
        there = {"allocation": taken, "instances": tuple(running[name])}
        objects.append(make_host(name, cpu=400_000, memory=1600 * GIB, domains=domains, **there))
    return objects


def planned(objects: Sequence[Resource], using: RoleSettings | None = None, *, seed: int = 1) -> list[Resource]:
    """The same with the slots of a plan, written to a store and read back."""
    return asyncio.run(_planned(objects, using or settings(), seed))


async def _planned(objects: Sequence[Resource], using: RoleSettings, seed: int) -> list[Resource]:
    store = _store(objects, seed)
    gathered = await gather(store, using)
    result = plan(await plan_input(gathered))
    writer = SlotWriter(store, clock=SystemClock(), ids=SeededIds(Random(seed)), creator="test")
    await write_plan(writer, result.actions, gathered.observation.objects)
    return await all_objects(store)


def certified(
    objects: Sequence[Resource], using: RoleSettings | None = None, *, partial: bool = False
) -> CertifyResult:
    """What the maker says of these objects."""
    return asyncio.run(_certified(objects, using or settings(), partial))


async def _certified(objects: Sequence[Resource], using: RoleSettings, partial: bool) -> CertifyResult:
    store = _store(objects, 1)
    gathered = await gather(store, using)
    return certify(certify_input(gathered, objects, partial=partial))


def _store(objects: Sequence[Resource], seed: int) -> MemoryStore:
    store = MemoryStore(SystemClock(), SeededIds(Random(seed).fork("store")))
    store.load(objects)
    return store


def state_file(objects: Sequence[Resource]) -> bytes:
    return encode_state(State(taken_at=TAKEN_AT, objects=tuple(objects)))


def documents(objects: Sequence[Resource]) -> list[dict[str, Any]]:
    """The objects as plain JSON, to be tampered with."""
    return [msgspec.json.decode(encode(item)) for item in objects]


def resources(plain: Sequence[dict[str, Any]]) -> list[Resource]:
    """The objects that plain JSON describes."""
    wire = {"takenAt": "2026-03-01T12:00:00Z", "objects": list(plain)}
    return list(decode_state(msgspec.json.encode(wire)).objects)


def certificate_document(certificate: Certificate) -> dict[str, Any]:
    """The certificate as plain JSON, as it is in its file."""
    return msgspec.json.decode(encode_certificate(certificate))
