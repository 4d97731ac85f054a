"""A plan as numbers, for packing to search on: what may move, where it may go, and what stays as it is.

Only what the plan itself adds may move: memberships that it gives, and slots that it opens. Memberships and slots that
were there before count for the rules and stay. So do those of server groups, whose policies tie several VMs together
(docs/reference/failover-planning.md#packing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.failover.fleet import NO_LIMIT
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.actions import Offer
from outlive.failover.separation import ServerGroup
from outlive.failover.sizing import ResolvedSize, resolve_size
from outlive.failover.topology import Topology

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What packing has to know besides the plan."""

    vms: Mapping[str, VmView]
    sizes: Mapping[str, ResolvedSize]
    classes: Mapping[str, str]
    reuse: Mapping[str, Offer]
    new: Mapping[str, Offer]
    free: Mapping[str, tuple[int, int]]
    """Before the plan; an empty table limits nothing."""
    hosts: tuple[str, ...]
    topology: Topology
    groups: tuple[ServerGroup, ...] = ()
    """The server groups that bind: the memberships of their members stay as they are, and their slots where they are.
    """

    @property
    def held_fast(self) -> frozenset[str]:
        """The members of these groups."""
        return frozenset(member for group in self.groups for member in group.members)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays by number. The number after the last slot stands for "none"."""

    names: tuple[str, ...]
    """Slots."""
    vm_names: tuple[str, ...]
    """Members of any slot."""
    hosts: tuple[str, ...]
    points: int
    width: int
    """The most slots of any VM, two at least."""
    slots_of: Ints
    """(vms, width)."""
    movable: Bools
    """(vms, width)."""
    held: Ints
    """Slots of each VM."""
    vm_point: Ints
    vm_kind: Ints
    vm_size: Ints
    """(vms, 2): what a slot has to be that it opens."""
    slot_host: Ints
    slot_size: Ints
    """(slots, 2): milli-cores and bytes."""
    free: Ints
    """(hosts, 2), less the plan's slots."""
    own: Bools
    """Slots that the plan opens and that nothing holds in place."""
    joinable: Bools
    host_point: Ints
    kind_size: Ints
    """(kinds, 2)."""
    kind_reuse: Bools
    """(kinds, hosts): where VMs of this kind may join a slot."""
    kind_new: Bools
    """(kinds, hosts): where they may open one."""
    domains: Ints
    """(domains that are kept apart, hosts): number of the value, or -1."""

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def keeps_apart(self) -> bool:
        """Whether a VM's slots have to be in different domains."""
        return len(self.domains) > 0

    def too_near(self, some: Any, others: Any) -> Any:
        """Whether hosts are in one domain; host numbers or arrays of them, that fit each other."""
        near = np.zeros(np.broadcast(some, others).shape, dtype=bool)
        for values in self.domains:
            near |= (values[some] == values[others]) & (values[some] >= 0)
        return near


def problem_of(before: Iterable[SlotView], slots: Sequence[SlotView], ground: Ground) -> Problem:
    """The plan that ends with ``slots`` and began with ``before``."""
    were, held_fast = {slot.name: slot.members for slot in before}, ground.held_fast
    hosts = _Numbers([*ground.hosts, *(slot.host for slot in slots)])
    members: dict[str, list[tuple[int, bool]]] = {}
    where: dict[str, str] = {}
    own = np.array([slot.name not in were for slot in slots], dtype=bool)
    for number, slot in enumerate(slots):
        for vm, recorded in slot.members.items():
            fast = vm in were.get(slot.name, ()) or vm in held_fast or not _may_join(vm, ground)
            members.setdefault(vm, []).append((number, not fast))
            where[vm] = ground.vms[vm].host if vm in ground.vms else recorded
            if vm in held_fast or vm not in ground.vms:
                own[number] = False
    width = max(2, max((len(places) for places in members.values()), default=0))
    slots_of = np.full((len(members), width), len(slots), dtype=np.int64)
    movable = np.zeros((len(members), width), dtype=bool)
    for row, places in enumerate(members.values()):
        for place, (number, moves) in enumerate(places):
            slots_of[row, place], movable[row, place] = number, moves
    domains = _domains(ground.topology, hosts.names)
    kinds = _Kinds(ground, hosts, domains)
    vm_kind = [kinds.of(vm, where[vm]) for vm in members]
    points = _Numbers([ground.topology.unit(host) for host in [*hosts.names, *where.values()]])
    free = _free(ground, hosts.names)
    for slot in slots:
        if slot.name not in were:
            free[hosts[slot.host]] -= (slot.cpu_milli, slot.memory_bytes)
    kind_size, kind_reuse, kind_new = kinds.tables()
    least = np.array([(slot.cpu_milli, slot.memory_bytes) for slot in slots], dtype=np.int64).reshape(-1, 2)
    joinable = np.array([slot.ready is not False for slot in slots], dtype=bool)
    return Problem(
        names=tuple(slot.name for slot in slots),
        vm_names=tuple(members),
        hosts=hosts.names,
        points=len(points.names),
        width=width,
        slots_of=slots_of,
        movable=movable,
        held=np.array([len(places) for places in members.values()], dtype=np.int64),
        vm_point=np.array([points[ground.topology.unit(where[vm])] for vm in members], dtype=np.int64),
        vm_kind=np.array(vm_kind, dtype=np.int64),
        vm_size=np.array([slot_size_for(vm, ground) for vm in members], dtype=np.int64).reshape(-1, 2),
        slot_host=np.array([hosts[slot.host] for slot in slots], dtype=np.int64),
        slot_size=least,
        free=free,
        own=own,
        joinable=joinable,
        host_point=np.array([points[ground.topology.unit(host)] for host in hosts.names], dtype=np.int64),
        kind_size=kind_size,
        kind_reuse=kind_reuse,
        kind_new=kind_new,
        domains=domains,
    )


class _Numbers:
    """Names by number."""

    def __init__(self, names: Iterable[str]) -> None:
        self._number = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.names = tuple(self._number)

    def __getitem__(self, name: str) -> int:
        return self._number[name]

    def mask(self, names: Iterable[str]) -> Bools:
        """Which of all are among these."""
        found = np.zeros(len(self.names), dtype=bool)
        found[[self._number[name] for name in names if name in self._number]] = True
        return found


class _Kinds:
    """VMs that may join the same slots."""

    def __init__(self, ground: Ground, hosts: _Numbers, domains: Ints) -> None:
        self._ground, self._hosts, self._domains = ground, hosts, domains
        self._number: dict[tuple[int, int, str, tuple[int, ...], tuple[str, ...]], int] = {}

    def of(self, vm: str, host: str) -> int:
        """The number of the VM's kind."""
        view = self._ground.vms.get(vm)
        at = self._hosts.names.index(host) if self._domains.size and host in self._hosts.names else -1
        near = tuple(self._domains[:, at].tolist()) if at >= 0 else ()
        size = (view.cpu_milli, view.memory_bytes) if view else (0, 0)
        limit = view.host_limit if view else ()
        return self._number.setdefault((*size, self._ground.classes.get(vm, ""), near, limit), len(self._number))

    def tables(self) -> tuple[Ints, Bools, Bools]:
        """Size, where they may join, where they may open."""
        sizes = np.array([key[:2] for key in self._number], dtype=np.int64).reshape(-1, 2)
        reuse = {key[2]: self._offered(self._ground.reuse.get(key[2])) for key in self._number}
        new = {key[2]: self._offered(self._ground.new.get(key[2])) for key in self._number}
        shape = (len(sizes), len(self._hosts.names))
        apart = [self._apart(key[3]) & self._allowed(key[4]) for key in self._number]
        where = np.array(apart, dtype=bool).reshape(shape)
        joins = np.array([reuse[key[2]] for key in self._number], dtype=bool).reshape(shape)
        opens = np.array([new[key[2]] for key in self._number], dtype=bool).reshape(shape)
        return sizes, joins & where, opens & where

    def _offered(self, offer: Offer | None) -> Bools:
        return self._hosts.mask(() if offer is None or offer.error else offer.hosts)

    def _allowed(self, limit: tuple[str, ...]) -> Bools:
        return self._hosts.mask(limit or self._hosts.names)

    def _apart(self, near: tuple[int, ...]) -> Bools:
        fine = np.ones(len(self._hosts.names), dtype=bool)
        for values, value in zip(self._domains, near, strict=False):
            if value >= 0:
                fine &= values != value
        return fine


def _may_join(vm: str, ground: Ground) -> bool:
    offer = ground.reuse.get(ground.classes.get(vm, ""))
    return vm in ground.vms and offer is not None and not offer.error


def slot_size_for(vm: str, ground: Ground) -> tuple[int, int]:
    """What a slot has to hold that this VM opens."""
    view = ground.vms.get(vm)
    if view is None:
        return 0, 0
    size = ground.sizes.get(vm) or resolve_size(view)
    return max(size.cpu_milli, view.cpu_milli), max(size.memory_bytes, view.memory_bytes)


def _free(ground: Ground, hosts: Sequence[str]) -> Ints:
    unknown = NO_LIMIT if not ground.free else 0
    amounts = [ground.free.get(host, (unknown, unknown)) for host in hosts]
    return np.array([[min(each, NO_LIMIT) for each in pair] for pair in amounts], dtype=np.int64).reshape(-1, 2)


def _domains(topology: Topology, hosts: Sequence[str]) -> Ints:
    rows = []
    for values in topology.apart.values():
        numbers: dict[str, int] = {}
        rows.append([numbers.setdefault(values[host], len(numbers)) if host in values else -1 for host in hosts])
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(hosts))
