"""Random sales: customers who ask for anything in any order, VMs that start and end at any instant of a batch's life, a
store that is slow, loses writes and their answers, hosts that are lost, and processes that die.

``play(seed)`` is one case under virtual time. It fails where room is sold twice: where what runs, what was sent to
start and what is promised is more than a host has, or where a commitment that was accepted does not have its room:

    nice .venv/bin/python -m tests.support.random_sales --cases 10000 [--first SEED]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import structlog
from msgspec.structs import replace

from outlive.base import LoopClock, OutliveError, Random, SeededIds, Unavailable, Unknown
from outlive.commitments import (
    Batch,
    CommitmentRequest,
    ProjectRequest,
    join_documents,
    needs_confirmation,
    slot_allocations,
)
from outlive.resources import (
    COMMITTED,
    IN_FLIGHT,
    Amounts,
    CommitmentChange,
    CommittedResource,
    Hypervisor,
    Instance,
    R,
    Reservation,
    VirtualMachine,
)
from outlive.store import Change, MemoryStore, Selector, Store, StoreProxy, list_all
from tests.support.loops import run
from tests.support.sales import FLAVORS, GIB, ZONE, Market, asked, batch, host, live, project
from tests.support.sales import vm as machine

T = TypeVar("T")

UNIT = 8 * GIB
Sold = dict[str, tuple[str, int]]
"""Commitment → its project, and units of memory."""

HOSTS, UNITS = 2, 8
"""Hosts of a case, and units of memory that each has."""
PROGRESS = 100
"""After so many cases the command says how far it is."""
LASTS_S = 12.0
"""How long customers ask for things and VMs start."""
SETTLES_S = 100.0
"""After which nothing moves any more."""
SENT_S = 3.0
"""A VM that was placed so shortly before a process died is given up by who asked: he got no answer, or cannot know
whether its room was written."""


class Customers:
    """Who asks for what, as a seed has it."""

    def __init__(self, seed: int, *, most: int = 8) -> None:
        self.draw = random.Random(seed)
        self._most = most
        self._number = 0

    def _new(self) -> str:
        self._number += 1
        return f"u{self._number:05d}"

    def batch(self, sold: Sold) -> tuple[Batch, Sold]:
        """Up to three changes, and what is sold afterwards."""
        after, asks = dict(sold), dict[str, list[CommitmentRequest]]()
        left = sorted(sold)
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.choice(["new", "new", "delete", "resize", "convert", "move"])
            if kind == "new" or not left:
                uuid, owner, amount = self._new(), self.draw.choice(["p1", "p2"]), self.draw.randint(1, self._most)
                asks.setdefault(owner, []).append(asked(uuid, amount))
                after[uuid] = owner, amount
                continue
            uuid = left.pop(self.draw.randrange(len(left)))
            owner, amount = after.pop(uuid)
            mine = asks.setdefault(owner, [])
            if kind == "delete":
                mine.append(asked(uuid, amount, old="confirmed", new=None))
            elif kind == "resize":
                after[uuid] = owner, self.draw.randint(1, self._most)
                mine.append(asked(uuid, after[uuid][1], old="confirmed"))
            elif kind == "convert":
                other = self._new()
                after[other] = owner, amount
                mine.extend((asked(uuid, amount, old="confirmed", new="superseded"), asked(other, amount)))
            else:
                after[uuid] = "p2" if owner == "p1" else "p1", amount
                mine.append(asked(uuid, amount, old="confirmed", new=None))
                asks.setdefault(after[uuid][0], []).append(asked(uuid, amount))
        return batch(*(_with_totals(project(name, *mine), sold, after) for name, mine in asks.items())), after


def _with_totals(one: ProjectRequest, before: Sold, after: Sold) -> ProjectRequest:
    first, then = (sum(amount for owner, amount in sold.values() if owner == one.project) for sold in (before, after))
    return replace(one, resources=(replace(one.resources[0], confirmed_before=first, confirmed_after=then),))


class Faulty(StoreProxy):
    """A store of which each write may take its time, be lost, or lose its answer; ``dead``: nothing is written."""

    embedded = False

    def __init__(self, store: MemoryStore, draw: random.Random, *, slow_s: float) -> None:
        self._store = store
        self._draw = draw
        self._slow_s = slow_s
        self.loses = 0.0
        self.dead = False
        self.incarnation = store.incarnation

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        await asyncio.sleep(self._draw.choice((0.0, self._draw.uniform(0, self._slow_s))))
        if self.dead:
            await asyncio.Event().wait()
        fate = self._draw.random()
        if fate < self.loses / 3:
            raise Unavailable("the store is away")
        if fate < self.loses * 2 / 3:
            raise Unknown("the write was lost")
        found = await call(self._store)
        await asyncio.sleep(self._draw.choice((0.0, self._draw.uniform(0, self._slow_s))))
        if fate < self.loses:
            raise Unknown("the answer was lost")
        return found

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self._store.observe(kind, selector=selector)

    async def close(self) -> None:
        """The store behind is for the next process."""


class Sent:
    """A VM that was placed: where, when, and whether it runs by now."""

    def __init__(self, owner: str, where: str, at: float) -> None:
        self.owner = owner
        self.host = where
        self.at = at
        self.runs = False


class Case:
    """One case: what is true of it, whatever the program believes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.customers = Customers(seed, most=4)
        self.memory = MemoryStore(LoopClock(), SeededIds(Random(seed)))
        self.memory.load([*FLAVORS, *(host(f"h{n}", gib=UNITS * 8) for n in range(HOSTS))])
        self.sold: Sold = {}
        self.allowed: list[Sold] = [{}]
        """What may be sold now: of a batch without an answer nobody knows whether it counts."""
        self.unconfirmed: set[str] = set()
        """Commitments about which nobody asked whether there is room: they may wait for it."""
        self.vms: dict[str, Sent] = {}
        self.lost: set[str] = set()
        self.started = self.accepted = 0
        self.known = self.draw.random() < 0.5
        """Whether our own objects say which VMs there are, so that new commitments cover what runs."""

    # -- what happens ----------------------------------------------------------------------------------

    async def play(self) -> None:
        lives = self.draw.choice((1, 1, 2))
        for life in range(lives):
            slow_s, loses = self.draw.choice((0.0, 0.05, 0.4)), self.draw.choice((0.0, 0.0, 0.1))
            store = Faulty(self.memory, self.draw, slow_s=slow_s)
            last = life == lives - 1

            async def story(market: Market, store: Faulty = store, last: bool = last, loses: float = loses) -> None:
                store.loses = loses
                await self._live(market, store, last)

            await live(store, story, ends=last)

    async def _live(self, market: Market, store: Faulty, last: bool) -> None:
        """One life of the process, which ends by its death unless it is the last one."""
        acts = [self._sell(market), self._start(market), self._start(market), self._end()]
        if last and self.draw.random() < 0.15:
            acts.append(self._lose())
        tasks = [asyncio.create_task(act) for act in acts]
        ends = asyncio.get_running_loop().time() + (LASTS_S if last else self.draw.uniform(0.1, LASTS_S))
        while asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(self.draw.choice((0.003, 0.05, 0.3, 1.0)))
            await self.check_instant()
        if not last:
            store.dead = True
            now = asyncio.get_running_loop().time()
            self.vms = {name: vm for name, vm in self.vms.items() if vm.runs or now - vm.at > SENT_S}
        for task in tasks if not last else ():
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        if last:
            store.loses = 0.0
            await asyncio.sleep(SETTLES_S)
            await self._learn()
            await self.check_instant()
            await self.check_settled(market)

    def lost_answer(self) -> bool:
        """Whether nobody knows if the last batch counts."""
        return len(self.allowed) > 1

    async def _sell(self, market: Market) -> None:
        """Batches, one after the other, as Limes sends them; after one without an answer it looks what became of it."""
        if self.lost_answer():
            await asyncio.sleep(self.draw.uniform(15, 30))
            await self._learn()
        for _ in range(self.draw.randint(1, 4)):
            await asyncio.sleep(self.draw.choice((0.0, self.draw.uniform(0, 4))))
            wanted, after = self.customers.batch(self.sold)
            self.allowed = [self.sold, after]
            changed = {uuid for uuid in after if after[uuid] != self.sold.get(uuid)}
            if needs_confirmation(wanted):
                self.unconfirmed.difference_update(changed)
            else:
                self.unconfirmed.update(changed)
            try:
                answer = await market.change(wanted)
            except Unavailable:
                answer = "nothing was done"
            except OutliveError:
                return
            self.sold = self.sold if answer else after
            self.accepted += not answer
            self.allowed = [self.sold]

    async def _start(self, market: Market) -> None:
        """VMs of customers of which one, p3, has no commitments; each runs a while after it was placed."""
        while True:
            await asyncio.sleep(self.draw.choice((0.0, self.draw.uniform(0, 0.05), self.draw.uniform(0, 3))))
            if self.started >= 20 or asyncio.get_running_loop().time() > 3600:
                return
            self.started += 1
            name, owner = f"vm-{self.started}", self.draw.choice(("p1", "p1", "p2", "p3"))
            hosts = [f"h{n}" for n in range(HOSTS) if f"h{n}" not in self.lost]
            found = json.loads((await market.role.placement.answer_external(_call(name, owner, hosts))).body)["hosts"]
            if found:
                self.vms[name] = Sent(owner, found[0], asyncio.get_running_loop().time())
                asyncio.get_running_loop().create_task(self._arrive(name, self.draw.uniform(0, 20)))

    async def _arrive(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        vm = self.vms.get(name)
        if vm is None or vm.host in self.lost:
            self.vms.pop(name, None)
            return
        vm.runs = True
        await self._report(vm.host)
        if self.known:
            made = machine(name, vm.host, project=vm.owner)
            await self.memory.replace_status(replace(await self.memory.create(made), status=made.status))

    async def _end(self) -> None:
        """Some of the VMs end."""
        for _ in range(self.draw.randint(0, 4)):
            await asyncio.sleep(self.draw.uniform(0, 4))
            running = sorted(name for name, vm in self.vms.items() if vm.runs)
            if running:
                name = self.draw.choice(running)
                await self._report(self.vms.pop(name).host)
                if self.known:
                    await self.memory.delete((await self.memory.get(VirtualMachine, name)).ref)

    async def _lose(self) -> None:
        await asyncio.sleep(self.draw.uniform(0, LASTS_S))
        name = f"h{self.draw.randrange(HOSTS)}"
        self.lost.add(name)
        self.vms = {one: vm for one, vm in self.vms.items() if vm.host != name}
        found = await self.memory.get(Hypervisor, name)
        await self.memory.replace_status(replace(found, status=replace(found.status, lost="fence-1")))

    async def _report(self, name: str) -> None:
        """What the host's own daemon says of it."""
        found = await self.memory.get(Hypervisor, name)
        here = sorted(one for one, vm in self.vms.items() if vm.runs and vm.host == name)
        used = Amounts(cpu=2000 * len(here), memory=UNIT * len(here))
        status = replace(found.status, instances=tuple(Instance(id=one) for one in here), allocation=used)
        await self.memory.replace_status(replace(found, status=status))

    # -- what must be true -----------------------------------------------------------------------------

    async def _learn(self) -> None:
        """What is sold, where the answer to a batch was lost: what the store says."""
        there = [one async for one in list_all(self.memory, CommittedResource) if one.spec.state == "confirmed"]
        found = {one.spec.commitment_uuid: (one.spec.project_id, one.spec.total // UNIT) for one in there}
        assert found in self.allowed, f"sold is {found}, which is none of {self.allowed}"
        self.sold, self.allowed = found, [found]

    async def slots(self) -> dict[str, Reservation]:
        """Commitment slots as they are promised: as stored, with changes that count and are not applied."""
        listed = [one async for one in list_all(self.memory, Reservation)]
        found = {one.name: one for one in listed if one.spec.type == COMMITTED}
        documents = {one.name: one async for one in list_all(self.memory, CommitmentChange)}
        for head in sorted(documents.values(), key=lambda one: one.name):
            if head.part_of or head.phase != "decided":
                continue
            for step in join_documents(head, documents) or ():
                for change in step.slots:
                    before = found.pop(change.name, None)
                    if change.deleted or step.after is None:
                        continue
                    found[change.name] = _promised(
                        before, change.host, change.memory_bytes, step.uuid, step.after.project_id
                    )
        return found

    async def check_instant(self) -> None:
        """No host is promised, sent and running more than it has, however well VMs fit into slots of their project; and
        what was accepted has its room."""
        slots = await self.slots()
        for name in (f"h{n}" for n in range(HOSTS)):
            if name in self.lost:
                continue
            promised, used = dict[str, int](), dict[str, int]()
            for slot in slots.values():
                if slot.spec.target_host == name:
                    owner, size = _owner(slot), slot.spec.resources.memory_bytes // UNIT
                    promised[owner] = promised.get(owner, 0) + size
            for vm in self.vms.values():
                if vm.host == name:
                    used[vm.owner] = used.get(vm.owner, 0) + 1
            needed = sum(max(promised.get(one, 0), used.get(one, 0)) for one in {*promised, *used})
            assert needed <= UNITS, f"{name} has {UNITS}, promised are {promised}, VMs of projects use {used}"
        if not self.lost_answer() and not self.lost:
            held = dict[str, int]()
            for slot in slots.values():
                if slot.spec.target_host:
                    uuid = _uuid(slot)
                    held[uuid] = held.get(uuid, 0) + slot.spec.resources.memory_bytes // UNIT
            for uuid in self.sold.keys() - self.unconfirmed:
                _, amount = self.sold[uuid]
                assert held.get(uuid, 0) >= amount, f"{uuid} was accepted for {amount} and holds {held.get(uuid, 0)}"

    async def check_settled(self, market: Market) -> None:
        """Each slot by itself: what VMs in it do not use is free beside everything that runs."""
        slots = await self.slots()
        placed = dict[str, str]()
        for name in (f"h{n}" for n in range(HOSTS)):
            if name in self.lost:
                continue
            here = {one for one, vm in self.vms.items() if vm.host == name}
            left = 0
            for slot in slots.values():
                inside = [one for one in slot_allocations(slot) if one in here]
                assert not (twice := [one for one in inside if one in placed]), (
                    f"{twice} are in {slot.name} and {placed}"
                )
                placed.update(dict.fromkeys(inside, slot.name))
                if slot.spec.target_host == name:
                    left += max(0, slot.spec.resources.memory_bytes // UNIT - len(inside))
            assert left + len(here) <= UNITS, (
                f"{name} has {UNITS}: {len(here)} VMs run and slots beside them hold {left}, VMs in slots: {placed}"
            )
            if not [one async for one in list_all(self.memory, Reservation) if one.spec.type == IN_FLIGHT]:
                assert market.free(name) == (UNITS - left - len(here)) * 8 or any(
                    vm not in self.vms for slot in slots.values() for vm in slot_allocations(slot)
                ), f"the ledger has {market.free(name)} GiB free on {name}"
        if not self.lost:
            reasons = {uuid: await market.ready(uuid) for uuid in self.sold if uuid not in self.unconfirmed}
            assert set(reasons.values()) <= {"Accepted"}, reasons


def _promised(before: Reservation | None, where: str, size: int, uuid: str, owner: str) -> Reservation:
    """A slot of which a change says this."""
    from outlive.resources import CommittedSpec, ObjectMeta, ReservationSpec

    spec = before.spec if before is not None else ReservationSpec(type="CommittedResourceReservation")
    details = spec.committed_resource_reservation or CommittedSpec()
    details = replace(details, commitment_uuid=uuid, project_id=owner)
    made = replace(
        spec,
        resources=Amounts(cpu=spec.resources.cpu_milli, memory=size),
        target_host=spec.target_host or where,
        committed_resource_reservation=details,
    )
    return Reservation(metadata=before.metadata if before is not None else ObjectMeta(name="new"), spec=made)


def _owner(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.project_id if details is not None else ""


def _uuid(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.commitment_uuid if details is not None else ""


def _call(vm: str, owner: str, hosts: list[str]) -> bytes:
    """Nova's call for a VM of the smallest flavor."""
    flavor = {"name": "m8", "memory_mb": 8192, "vcpus": 2, "extra_specs": dict(FLAVORS[2].spec.extra_specs)}
    spec = {
        "instance_uuid": vm,
        "project_id": owner,
        "num_instances": 1,
        "availability_zone": ZONE,
        "scheduler_hints": {},
        "flavor": {"nova_object.data": flavor},
    }
    call = {
        "spec": {"nova_object.name": "RequestSpec", "nova_object.data": spec},
        "hosts": [{"host": one} for one in hosts],
        "weights": dict.fromkeys(hosts, 0.0),
        "pipeline": "kvm-general-purpose-load-balancing",
    }
    return json.dumps(call).encode()


def play(seed: int) -> Case:
    """One case; ``AssertionError`` where room is sold twice."""
    case: list[Case] = []

    async def scene() -> None:
        case.append(Case(seed))
        await case[0].play()

    run(scene())
    return case[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Random sales with starts at every instant.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed, started, accepted = list[int](), 0, 0
    for seed in range(given.first, given.first + given.cases):
        try:
            case = play(seed)
            started, accepted = started + len(case.vms), accepted + case.accepted
        except Exception:
            failed.append(seed)
            print(f"seed {seed}:", traceback.format_exc(limit=-2), file=sys.stderr, flush=True)
        if (seed - given.first + 1) % PROGRESS == 0:
            print(f"{seed - given.first + 1} cases, {len(failed)} failed", file=sys.stderr, flush=True)
    what = f"{accepted} batches accepted, {started} VMs left"
    print(f"{given.cases} cases from seed {given.first}: {what}, {len(failed)} failed: {failed[:50]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
