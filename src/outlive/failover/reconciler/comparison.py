"""Whether the cache shows what a rebuild out of the informers would: all names at each tick, and some objects in turn.

A difference is a defect of following. It is reported, and the cache is built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from outlive.base.batches import batches
from outlive.base.clock import Clock
from outlive.failover.reconciler.cache import VMS_AT_ONCE, FleetCache
from outlive.failover.rules import serves
from outlive.failover.slots import is_slot, slot_view
from outlive.placement.vms import VmView
from outlive.resources.hosts import unschedulable

COMPARED: Final = 300
"""Hosts, slots and VMs that one comparison looks at; the next one goes on behind them."""
COMPARED_AT_ONCE: Final = 30


class Comparison:
    """See the module."""

    def __init__(self, cache: FleetCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._rest: dict[str, list[str]] = {}

    async def differences(self) -> list[str]:
        """What differs, in words: of all names, and of ``COMPARED`` hosts, slots and VMs, the next time of others."""
        cache = self._cache
        hosts, slots = cache.informers.hypervisors, cache.informers.reservations
        differences = [f"host {name}" for name in sorted({one.name for one in hosts.items()} ^ cache.locations.names)]
        listed: set[str] = set()
        for reservations in batches(slots.items(), VMS_AT_ONCE):
            listed.update(slot.name for slot in reservations if is_slot(slot))
            await self._clock.sleep(0)
        there = [(name, slots.get(name)) for name in listed ^ cache.slots.keys()]
        missing = [name for name, slot in there if (slot is not None and is_slot(slot)) != (name in cache.slots)]
        differences += [f"slot {name}" for name in sorted(missing)]
        checks: tuple[tuple[str, Callable[[], Iterable[str]], Callable[[str], bool]], ...] = (
            ("VMs on host", lambda: sorted(cache.locations.names), self._host_differs),
            ("slot", lambda: cache.slots, self._slot_differs),
            ("VM", self._vms, self._vm_differs),
        )
        for what, names, differs in checks:
            for some in batches(self._next(what, names), COMPARED_AT_ONCE):
                differences += [f"{what} {name}" for name in some if differs(name)]
                await self._clock.sleep(0)
        return differences

    def _vms(self) -> list[str]:
        cache = self._cache
        return [*cache.known, *(vm for vm in cache.index.names if vm not in cache.known)]

    def _next(self, what: str, names: Callable[[], Iterable[str]]) -> list[str]:
        rest = self._rest.get(what)
        if not rest:
            rest = self._rest[what] = list(names())
        some, self._rest[what] = rest[:COMPARED], rest[COMPARED:]
        return some

    def _host_differs(self, name: str) -> bool:
        cache = self._cache
        host = cache.informers.hypervisors.get(name)
        if host is None or name not in cache.locations.names:
            return False  # it came or went since
        reported = {instance.id for instance in host.status.instances if instance.active}
        return cache.locations.on(name) != reported or cache.locations.closed.get(name, "") != unschedulable(host)

    def _slot_differs(self, name: str) -> bool:
        cache = self._cache
        slot = cache.informers.reservations.get(name)
        if slot is None or not is_slot(slot) or name not in cache.slots:
            return False
        view = cache.applied(slot_view(slot))
        return cache.slots[name] != view or cache.index.members(name) != sorted(view.members)

    def _vm_differs(self, vm_id: str) -> bool:
        cache = self._cache
        now = cache.locations.located(cache.known.get(vm_id))
        if now != cache.vms.get(vm_id):
            return True
        if not cache.index.has_vm(vm_id):
            return now is not None
        mine = cache.index.slots_of(vm_id)
        if any(vm_id not in cache.slots[name].members for name in mine if name in cache.slots):
            return True
        if now is None:
            return False
        counting = sum(serves(now, cache.slots[name]) for name in mine if name in cache.slots)
        return cache.index.misses(vm_id) != max(0, cache.required(now) - counting) or self._rules_differ(now, mine)

    def _rules_differ(self, vm: VmView, mine: Sequence[str]) -> bool:
        """The counter formula, literally: no unit occurs twice."""
        cache = self._cache
        hosts = [vm.host]
        for slot in (cache.slots[name] for name in mine if name in cache.slots):
            others = [other for other in slot.members if other != vm.id and cache.index.has_vm(other)]
            hosts += [slot.host, *map(cache.index.location, others)]
        units = set(map(cache.topology(hosts).unit, hosts))
        return cache.index.holds_for(vm.id) != (len(units) == len(hosts))
