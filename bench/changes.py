"""Batches of commitments on the embedded store: how long Limes waits, and what a killed process leaves."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bench.figures import Figure
from outlive.base import Random, SystemClock, SystemIds
from outlive.commitments import (
    Batch,
    CommitmentRequest,
    CommitmentSettings,
    GroupSettings,
    ProjectRequest,
    RamSettings,
    ResourceRequest,
)
from outlive.failover import FailoverConfig, Inline
from outlive.placement import HYPERVISOR_TYPE
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    CommitmentChange,
    CommittedResource,
    Condition,
    DomainCapabilities,
    Flavor,
    FlavorSpec,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    Resource,
)
from outlive.roles import Ports, RoleSettings, UpRole
from outlive.store import Store, list_all
from outlive.store.sqlite import SqliteStore

HOSTS, PROJECTS, GROUPS = 1_000, 50, 20
UNITS = 3
"""Of the smallest flavor that each commitment has: two slots."""
RUNS = 5
GIB = 2**30
ZONE = "zone-a"
SETTINGS = RoleSettings(
    failover=FailoverConfig(flavor_failover_requirements={"*": 0}).apply_defaults(),
    commitments=CommitmentSettings(
        flavor_group_resources={"*": GroupSettings(ram=RamSettings(handles_commitments=True, handles_dry_run=True))}
    ),
)


def inventory() -> Iterable[Resource]:
    """Hosts and flavors."""
    for number in range(GROUPS):
        for gib in (8, 16):
            yield Flavor(
                metadata=ObjectMeta(name=f"g{number}-{gib}"),
                spec=FlavorSpec(
                    flavor_name=f"g{number}_{gib}",
                    resources=Amounts(cpu=gib * 250, memory=gib * GIB),
                    extra_specs={"quota:hw_version": f"g{number}", HYPERVISOR_TYPE: "QEMU"},
                ),
            )
    for number in range(HOSTS):
        size = Amounts(cpu=128_000, memory=512 * GIB)
        yield Hypervisor(
            metadata=ObjectMeta(name=f"h{number:04}", labels={ZONE_LABEL: ZONE}),
            status=HypervisorStatus(
                capacity=size,
                allocation=Amounts(cpu=0, memory=0),
                domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
                conditions=(Condition(type="Ready", status="True"),),
            ),
        )


def batch(run: int, *, ends: bool = False) -> Batch:
    """A commitment of each project to each group; with ``ends`` all of them are deleted."""
    before, after = ((UNITS, 0), (0, UNITS))[not ends]
    return Batch(
        zone=ZONE,
        projects=tuple(
            ProjectRequest(
                project=f"project-{project:02}",
                resources=tuple(
                    ResourceRequest(
                        name=f"hw_version_g{group}_ram",
                        confirmed_before=before,
                        confirmed_after=after,
                        commitments=(
                            CommitmentRequest(
                                uuid=f"c{run}-{project}-{group}-x",
                                old_status="confirmed" if ends else None,
                                new_status=None if ends else "confirmed",
                                amount=UNITS,
                            ),
                        ),
                    )
                    for group in range(GROUPS)
                ),
            )
            for project in range(PROJECTS)
        ),
    )


async def _measured(folder: Path) -> tuple[list[float], list[float]]:
    clock, ids, random = SystemClock(), SystemIds(), Random(1)
    store = await SqliteStore.open(folder / "state", clock=clock, ids=ids)
    for one in inventory():
        written = await store.create(one)
        if isinstance(one, Hypervisor):
            await store.replace_status(_with_status(written, one))
    made = UpRole(store, SETTINGS, Ports(computer=Inline()), identity="bench", clock=clock, random=random, ids=ids)
    await made.prepare()
    running = asyncio.create_task(made.run())
    while made.explain_unready() or len(made.commitments.view.groups_by_name()) < GROUPS:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.2)
    answered: list[float] = []
    applied: list[float] = []
    try:
        for run in range(RUNS):
            begun = time.perf_counter()
            refusal = await made.commitments.changes.change(batch(run), request_id=str(run), requested_by="bench")
            answered.append(time.perf_counter() - begun)
            if refusal is not None:
                raise SystemExit(f"the batch was refused: {refusal.reason[:500]}")
            await _all_applied(store)
            applied.append(time.perf_counter() - begun)
            found = [one async for one in list_all(store, CommittedResource)]
            if len(found) != PROJECTS * GROUPS or any(one.status.accepted_spec is None for one in found):
                raise SystemExit("the batch was accepted and is not there")
            gone = await made.commitments.changes.change(batch(run, ends=True), request_id="", requested_by="bench")
            if gone is not None:
                raise SystemExit(f"the deletion was refused: {gone.reason[:500]}")
            await _all_applied(store)
    finally:
        made.stop()
        await running
        await store.close()
    return answered, applied


async def _all_applied(store: Store) -> None:
    applied = False
    while not applied:
        await asyncio.sleep(0.05)
        applied = all([one.phase != "decided" async for one in list_all(store, CommitmentChange) if not one.part_of])


def _with_status(written: Hypervisor, wanted: Hypervisor) -> Hypervisor:
    return Hypervisor(metadata=written.metadata, spec=written.spec, status=wanted.status)


def measure() -> list[Figure]:
    """The figures."""
    with tempfile.TemporaryDirectory() as folder:
        answered, applied = asyncio.run(_measured(Path(folder)))
    size = f"{PROJECTS * GROUPS:,} commitments with {2 * PROJECTS * GROUPS:,} slots; slowest {max(answered):.2f} s"
    return [
        Figure(
            f"change-commitments, {PROJECTS} projects x {GROUPS} flavor groups on {HOSTS:,} hosts, accepted whole",
            statistics.median(answered),
            "s",
            1.0,
            note=size,
        ),
        Figure("the same, until every object is written", statistics.median(applied), "s", note="embedded store"),
    ]
