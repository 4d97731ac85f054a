"""A change of the storage schema while hosts renew: how long it copies, how long renewals wait, the longest gap.

One host has a guard, a process of its own, that is armed and learns of each renewal that was acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace as changed
from tests.support.guards import Cgroups, Guard, Watchdog, boot_time_s
from tests.support.schemas import document
from tests.support.zookeeper import TestEnsemble

from bench.figures import Figure
from bench.kubernetes import padded
from outlive.base import Random, SystemClock, SystemIds
from outlive.node.fencing import PROFILES, ProfileName
from outlive.resources import MemberRecord, Membership, ObjectMeta, VirtualMachine
from outlive.store import list_all
from outlive.store.schema import LAST_S, SchemaDocument, SchemaState, is_last
from outlive.store.zookeeper import SchemaView, TreeMover, ZooKeeperAccess, ZooKeeperClient, ZooKeeperStore

VMS = 1000
HOSTS = 100
PROFILE = PROFILES[ProfileName.FAST]
LOOK_S = 0.002
CLOCK = SystemClock()


@dataclass
class MoveTimes:
    """Of one move, in seconds."""

    copy_s: float = 0.0
    """From its beginning until the new schema counts."""
    frozen_s: float = 0.0
    """Memberships could not be written."""
    gap_s: float = 0.0
    """The longest time between two renewals of one host."""
    missed: int = 0
    """Renewals of the armed host that took longer than until the next one, and closures of its guard."""


def both(version: int) -> SchemaDocument:
    """Schema 2 has the kinds of this release in their versions."""
    return document(1) if version == 1 else changed(document(2), kinds=document(1).kinds)


def store_on(access: ZooKeeperAccess, seed: int) -> ZooKeeperStore:
    """A store that knows both schemas."""
    client = ZooKeeperClient(access)
    view = SchemaView(client, clock=CLOCK, document=both)
    return ZooKeeperStore(client, clock=CLOCK, ids=SystemIds(), random=Random(seed), schema=view)


async def renew(
    store: ZooKeeperStore, name: str, over: asyncio.Event, times: MoveTimes, guard: Guard | None = None
) -> None:
    """Renew a membership as often as its profile says, and tell the guard of the host."""
    member, last = await store.get(Membership, name), time.perf_counter()
    while not over.is_set():
        sent_s = boot_time_s()
        member = await store.replace(changed(member, record=changed(member.record, seq=member.record.seq + 1)))
        now = time.perf_counter()
        if guard is not None:
            guard.beat(sent_s)
            times.missed += now - last > 2 * PROFILE.renew_s
        times.gap_s, last = max(times.gap_s, now - last), now
        await asyncio.sleep(float(PROFILE.renew_s))


async def watch(mover: TreeMover, target: int, times: MoveTimes) -> None:
    """See how far the move has come."""
    began = frozen = 0.0
    while True:
        state: SchemaState = await mover.read_state()
        now, move = time.perf_counter(), state.moving
        began = began or (now if move is not None else 0.0)
        if move is not None and any(map(is_last, move.frozen)):
            frozen = frozen or now
        if state.version == target:
            times.copy_s, times.frozen_s = now - began, now - frozen
            return
        await asyncio.sleep(LOOK_S)


@contextmanager
def armed_guard() -> Iterator[Guard]:
    """A guard that rehearses, armed as profile ``fast`` says, beside a guest."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        watchdog = stack.enter_context(closing(Watchdog(folder / "watchdog")))
        guests = stack.enter_context(closing(Cgroups(folder / "machine.slice")))
        options = ("--watchdog", str(watchdog.path), "--rehearsal", "--cgroup", str(guests.root))
        guard = stack.enter_context(closing(Guard(folder, *options)))
        guests.start("guest")
        guard.arm(float(PROFILE.guard_timeout_s), float(PROFILE.watchdog_s))
        yield guard


async def move(access: ZooKeeperAccess) -> tuple[MoveTimes, MoveTimes]:
    """There and back."""
    stack = ExitStack()
    store, hosts, watching = (store_on(access, seed) for seed in range(3))
    await store.prepare()
    try:
        for start in range(0, VMS, 100):
            await asyncio.gather(*(store.create(padded(start + number)) for number in range(100)))
        for number in range(HOSTS):
            record = MemberRecord(machine_id="m", boot_id="b")
            await store.create(Membership(metadata=ObjectMeta(name=f"kvm-{number}"), record=record))
        found = []
        for target in (2, 1):
            over, times = asyncio.Event(), MoveTimes()
            guard = stack.enter_context(armed_guard())
            renewals = [
                asyncio.create_task(renew(hosts, f"kvm-{n}", over, times, None if n else guard)) for n in range(HOSTS)
            ]
            await asyncio.sleep(2.0)
            seen = asyncio.create_task(
                watch(TreeMover(watching.client, by="watch", clock=CLOCK, document=both), target, times)
            )
            await TreeMover(store.client, by="bench", clock=CLOCK, document=both).run(target)
            await seen
            await asyncio.sleep(2.0)
            over.set()
            await asyncio.gather(*renewals)
            times.missed += len(guard.status()["closures"])
            stack.pop_all().close()
            assert len([one async for one in list_all(store, VirtualMachine)]) == VMS
            found.append(replace(times))
        return found[0], found[1]
    finally:
        stack.close()
        for one in (store, hosts, watching):
            await one.close()


def measure() -> list[Figure]:
    """The figures of a change of the storage schema."""
    ensemble = TestEnsemble()
    try:
        ensemble.start()
        ways = asyncio.run(move(ensemble.new_chroot()))
    finally:
        ensemble.remove()
    note = f"{VMS} VMs of 1 KiB, {HOSTS} hosts, the slower way of both"
    gap, most = max(one.gap_s for one in ways), float(PROFILE.guard_timeout_s)
    return [
        Figure("Storage schema: copied, and in use", max(one.copy_s for one in ways), "s", None, "lower", note),
        Figure("Storage schema: renewals wait", max(one.frozen_s for one in ways), "s", LAST_S, "lower", note),
        Figure(
            "Storage schema: renewals missed by an armed host", sum(one.missed for one in ways), "", 0, "lower", note
        ),
        Figure("Storage schema: the longest gap of renewals every second", gap, "s", most, "lower", note),
    ]
