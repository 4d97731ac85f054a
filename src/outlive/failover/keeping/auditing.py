"""Comparing the kept state with what there is, a portion at a time, by the literal rules.

Following changes one by one saves looking at everything, and a mistake in it would stay. So every cycle looks at some
hosts, slots and VMs, the next cycle at others, and a difference is told and mended by a rebuild
(docs/reference/failover.md#upkeep).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from outlive.failover.keeping.kept import KeptState
from outlive.failover.keeping.observe import as_it_stands, is_slot, slot_view
from outlive.failover.model import VmView
from outlive.failover.portions import Portions, portioned
from outlive.failover.rules import serves
from outlive.resources import Hypervisor, Reservation, Resource
from outlive.resources.taking import unschedulable

AUDITED = 300
"""Hosts, slots and VMs that one audit looks at; the next audit goes on behind them."""
AUDITED_TOGETHER = 30
"""Of these, how many between two turns of others."""


Kind = TypeVar("Kind", bound=Resource, covariant=True)


class Shown(Protocol[Kind]):
    """What is to be believed: an informer."""

    def items(self) -> Sequence[Kind]:
        """All objects."""
        ...

    def get(self, name: str) -> Kind | None:
        """One of them."""
        ...


class Audit:
    """Goes round through the kept state, and remembers how far it came."""

    def __init__(self, state: KeptState) -> None:
        self._state = state
        self._rest: dict[str, list[str]] = {}
        """Of each kind, the names that this round has not looked at, in reverse."""

    def differences(self, hosts: Shown[Hypervisor], slots: Shown[Reservation]) -> Portions[list[str]]:
        """What differs from a rebuild out of what these show, in words.

        All names are compared; apart from that it looks at ``AUDITED`` hosts, slots and VMs, the next audit at others.
        What is compared is read at one moment, so that changes between the portions do no harm.
        """
        state = self._state
        shown = {host.name for host in hosts.items()}
        differences = [f"host {name}" for name in sorted(shown ^ state.sightings.names)]
        yield
        listed = {slot.name for slot in slots.items() if is_slot(slot)}
        differences += [f"slot {name}" for name in sorted(listed ^ state.slots.keys())]
        yield
        for names in portioned(self._next("hosts", lambda: state.sightings.hosts), AUDITED_TOGETHER):
            differences += [f"VMs on host {name}" for name in names if not self._host_is(name, hosts.get(name))]
            yield
        for names in portioned(self._next("slots", lambda: state.slots), AUDITED_TOGETHER):
            differences += [f"slot {name}" for name in names if not self._slot_is(name, slots.get(name))]
            yield
        for names in portioned(self._next("VMs", self._all_vms), AUDITED_TOGETHER):
            for vm_id in names:
                differences += self._vm_differs(vm_id)
            yield
        return differences

    def _all_vms(self) -> Iterator[str]:
        listed = self._state.listed
        yield from listed
        yield from (vm for vm in self._state.counters.names if vm not in listed)

    def _next(self, what: str, names: Callable[[], Iterable[str]]) -> list[str]:
        """The next names of a round through all of them; those that came since wait for the next round."""
        rest = self._rest.get(what)
        if not rest:
            rest = self._rest[what] = list(names())
            rest.reverse()
        portion = rest[: -AUDITED - 1 : -1]
        del rest[-AUDITED:]
        return portion

    def _host_is(self, name: str, host: Hypervisor | None) -> bool:
        if host is None or name not in self._state.sightings.names:
            return True  # the names told it, or it came or went since
        if self._state.sightings.closed.get(name, "") != unschedulable(host):
            return False
        return self._state.sightings.on(name) == {instance.id for instance in host.status.instances if instance.active}

    def _slot_is(self, name: str, shown: Reservation | None) -> bool:
        if shown is None or not is_slot(shown) or name not in self._state.slots:
            return True  # likewise
        view = as_it_stands(slot_view(shown), self._state.sightings.closed)
        return self._state.slots[name] == view and self._state.counters.members(name) == sorted(view.members)

    def _vm_differs(self, vm_id: str) -> list[str]:
        state = self._state
        found = state.whereabouts(vm_id)
        if found != state.located.get(vm_id):
            return [f"location of VM {vm_id}"]
        if not state.counters.has_vm(vm_id):
            return [] if found is None else [f"VM {vm_id}"]
        mine = state.counters.slots_of(vm_id)
        if any(vm_id not in state.slots[name].members for name in mine if name in state.slots):
            return [f"slots of VM {vm_id}"]
        if found is None:
            return []
        counting = sum(serves(found, state.slots[name]) for name in mine if name in state.slots)
        if state.counters.misses(vm_id) != max(0, state.required(found) - counting):
            return [f"missing slots of VM {vm_id}"]
        if state.counters.holds_for(vm_id) != self._rules_hold(found, mine):
            return [f"rules of VM {vm_id}"]
        return []

    def _rules_hold(self, vm: VmView, mine: Iterable[str]) -> bool:
        """The counter formula, literally: no unit occurs twice."""
        state = self._state
        hosts = [vm.host]
        for name in mine:
            hosts.append(state.slots[name].host)
            hosts += [state.counters.location(other) for other in state.slots[name].members if other != vm.id]
        topology = state.topology(hosts)
        return len(hosts) == len(set(map(topology.unit, hosts)))
