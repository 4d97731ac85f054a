"""Gives each commitment slot a host, follows the VMs in it, and says whether it is there.

docs/design/commitment-rules.md#slots and #allocations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, Unavailable, get_logger
from outlive.commitments.application import swap_cached
from outlive.commitments.controllers.oversubscription import Departures
from outlive.commitments.domains import DomainNames
from outlive.commitments.oversubscription import evict_slot
from outlive.commitments.placer import SlotPlacer, status_of
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import confirmed_allocations, slot_allocations
from outlive.commitments.state import is_over
from outlive.commitments.verification import (
    VerificationInput,
    VerificationResult,
    choose_keeper,
    verify_slot,
    without_vms,
)
from outlive.commitments.view import ALLOCATION_INDEX, CommitmentView
from outlive.placement import is_ready
from outlive.resources import (
    COMMITTED,
    Amounts,
    CommittedSpec,
    CommittedStatus,
    Condition,
    Hypervisor,
    Reservation,
    find_condition,
    with_condition,
)
from outlive.runtime import Requeue
from outlive.store import Store, read

OTHERS_S: Final = 5.0
"""How soon a slot looks again that may leave once another one has its place."""
LEAVES_S: Final = 0.1
"""When a slot is looked at again that left its host: then it gets another one."""
NO_FLAVOR_S: Final = 300.0
"""When a slot of an unknown flavor is looked at again."""


_log = get_logger("commitments.slots")


class SlotController:
    """See the module. ``turn``: held by each placement; ``moving``: which VMs are on their way."""

    name = "commitment-slots"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        placer: SlotPlacer,
        departures: Departures,
        settings: CommitmentSettings,
        *,
        domains: DomainNames,
        moving: Callable[[Iterable[str]], tuple[str, ...]],
        turn: asyncio.Lock,
        clock: Clock,
    ) -> None:
        self._store = store
        self._view = view
        self._placer = placer
        self._departures = departures
        self._settings = settings
        self._domains = domains
        self._moving = moving
        self._turn = turn
        self._clock = clock
        self._sent: dict[str, str] = {}
        """Slot → the host that was chosen for it, while nobody knows whether that is written."""
        self._missing: dict[str, dict[str, float]] = {}
        """Slot → VM that no host reports → since when."""

    def keys_of_slot(self, old: Reservation | None, new: Reservation | None) -> Iterable[str]:
        """A commitment slot that changed, and others that list a VM which it lists now."""
        slot = new if new is not None else old
        if slot is None or slot.spec.type != COMMITTED:
            return
        yield slot.name
        before = slot_allocations(old) if old is not None else {}
        for vm in sorted(slot_allocations(slot).keys() - before.keys()):
            yield from (other.name for other in self._other_slots_of(slot.name, vm))

    def keys_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> Iterable[str]:
        """Slots with VMs that a host reports now and did not before, or the other way round; all of a host that is
        lost, is back, or is gone, and that takes no more VMs, or takes some again."""
        before = {one.id for one in old.status.instances} if old is not None else set()
        after = {one.id for one in new.status.instances} if new is not None else set()
        found: dict[str, None] = {}
        for vm in sorted(before ^ after):
            for slot in self._view.informers.reservations.list_by_index(ALLOCATION_INDEX, vm):
                found[slot.name] = None
        if old is not None and (new is None or _explain_closed(old) != _explain_closed(new)):
            found.update(dict.fromkeys(self._placer.slots_on(old.name)))
        return found

    async def reconcile(self, key: str) -> Requeue | None:
        """One slot, by name."""
        slot = self._view.informers.reservations.get(key)
        if slot is None or slot.spec.type != COMMITTED:
            self._settle(key)
            self._missing.pop(key, None)
            self._departures.forget(key)
            return None
        details = slot.spec.committed_resource_reservation
        if details is None or not details.resource_name:
            await self._say(slot, "MissingResourceName", "the slot names no flavor")
            return None
        if slot.spec.target_host:
            self._settle(key)
        if is_ready(slot):
            if not slot.spec.target_host:
                await self._revoke(slot)
                return None
            again = await self._verify(slot, details)
            leaves_s = await self._leave(key)
            return Requeue(leaves_s) if leaves_s is not None else again
        if slot.spec.target_host:
            await self._arrive(slot, details)
            return None
        return await self._place(slot, details)

    async def _place(self, slot: Reservation, details: CommittedSpec) -> Requeue | None:
        group = self._view.groups_by_name().get(details.resource_group)
        if group is None:
            return Requeue(self._settings.requeue_interval_retry)
        if all(flavor.name != details.resource_name for flavor in group.flavors):
            return Requeue(NO_FLAVOR_S)
        if why := self._placer.explain_unresolved(details.project_id, details.domain_id, details.resource_group):
            self._domains.want((details.domain_id,))
            await self._say(slot, "DomainUnknown", why)
            return Requeue(self._settings.requeue_interval_retry)
        avoided = self._departures.avoided_hosts(slot.name)
        async with self._turn:
            host, why = self._sent.get(slot.name, ""), ""
            if not host:
                host, why = self._placer.choose(self._placer.request_for_slot(slot, group, avoided))
            if not host and avoided:
                host, why = self._placer.choose(self._placer.request_for_slot(slot, group))
            if host:
                self._sent[slot.name] = host
                self._placer.fleet.decide(slot.name, self.name, partial(_place_on, host))
        if not host:
            text = f"no hosts found for reservation {slot.name} (flavor {details.resource_name})"
            await self._say(slot, "NoHostsFound", f"{text}: {why}")
            raise Unavailable(text, remedy="outlive commitments explain says what would help")

        await self._swap(slot.name, partial(_place_on, host), "spec")  # unless that is known, the place is held
        self._settle(slot.name)
        return None

    def _settle(self, name: str) -> None:
        """What was chosen for the slot is written, or there is no slot."""
        self._sent.pop(name, None)
        self._placer.fleet.settle(name, self.name)

    async def _arrive(self, slot: Reservation, details: CommittedSpec) -> None:
        """The slot is on the host that was chosen for it."""

        def change(found: Reservation | None) -> Reservation | None:
            if found is None or not found.spec.target_host or is_ready(found):
                return None
            status = status_of(found, details.parent_generation)
            seen = status.committed_resource_reservation or CommittedStatus()
            # VMs that it is meant for are confirmed once its host reports them
            status = replace(status, committed_resource_reservation=replace(seen, allocations={}))
            return replace(found, status=status)

        await self._swap(slot.name, change, "status")

    async def _revoke(self, slot: Reservation) -> None:
        """The slot is wanted nowhere any more; then another host is looked for."""

        def change(found: Reservation | None) -> Reservation | None:
            if found is None or found.spec.target_host or not is_ready(found):
                return None
            ready = Condition(type="Ready", status="False", reason="PlacementRevoked", message="it left its host")
            seen = found.status.committed_resource_reservation or CommittedStatus()
            status = replace(
                found.status,
                host="",
                conditions=with_condition(found.status.conditions, ready),
                committed_resource_reservation=replace(seen, allocations={}),
            )
            return replace(found, status=status)

        await self._swap(slot.name, change, "status")

    async def _verify(self, slot: Reservation, details: CommittedSpec) -> Requeue | None:
        """Confirm, keep, follow or drop the VMs of the slot, and echo its commitment's generation."""
        vms, fleet = tuple(slot_allocations(slot)), self._placer.fleet
        reported = {vm: fleet.hosts_of_vm(vm) for vm in vms}
        known = {vm: found for vm in vms if (found := self._view.vms.get(vm)) is not None}
        elsewhere = sorted({host for hosts in reported.values() for host in hosts if host != slot.status.host})
        given = VerificationInput(
            slot=slot,
            reported=reported,
            roomy=tuple(host for host in elsewhere if self._placer.has_room(slot, host)),
            sizes={vm: Amounts(cpu=one.cpu_milli, memory=one.memory_bytes) for vm, one in known.items()},
            moving=self._moving(vms),
            missing=self._missing.get(slot.name, {}),
            now=self._clock.now(),
            grace_s=self._settings.allocation_grace_period,
        )
        result = verify_slot(given)
        if result.missing:
            self._missing[slot.name] = dict(result.missing)
        else:
            self._missing.pop(slot.name, None)
        if result.slot.spec != slot.spec:
            await self._write_verified(slot, result, "spec")
        for vm in result.confirmed_first:
            for other in self._other_slots_of(slot.name, vm):
                await self._drop(other.name, vm)
        await self._write_verified(slot, result, "status")
        for vm in confirmed_allocations(result.slot):
            await self._drop_if_duplicate(slot.name, vm)
        if result.dropped:
            _log.info(
                "commitment_slot.vms_left", slot=slot.name, vms={vm: str(why) for vm, why in result.dropped.items()}
            )
        settings = self._settings
        return Requeue(settings.requeue_interval_grace_period if result.expects else settings.requeue_interval_active)

    async def _leave(self, name: str) -> float | None:
        """Let the slot leave its host: no VM of it is awaited any more, and the host is lost or gone, or takes no VMs
        and there is another one. A VM that is recovered takes its slot along, where that fits.

        In how many seconds to look again; ``None``: it stays. One slot after the other leaves a host that takes no VMs,
        because the place that one finds is not held for it.
        """
        slot = self._view.informers.reservations.get(name)
        host = self._view.informers.hypervisors.get(slot.status.host) if slot is not None else None
        if slot is None or slot_allocations(slot):
            return None
        if host is not None and not host.status.lost:
            if not _explain_closed(host):
                return None
            slots = self._view.informers.reservations.items()
            if any(one.spec.type == COMMITTED and not one.spec.target_host for one in slots):
                return OTHERS_S  # it may need the place that this one would take
            details = slot.spec.committed_resource_reservation or CommittedSpec()
            group = self._view.find_group(details.resource_group)
            if group is None or self._placer.explain_unresolved(
                details.project_id, details.domain_id, details.resource_group
            ):
                return None
            request = self._placer.request_for_slot(slot, group, (host.name,))
            if not self._placer.choose(request, why=False)[0]:
                return None

        def change(found: Reservation | None) -> Reservation | None:
            same = found is not None and found.spec.target_host == slot.spec.target_host
            return evict_slot(found) if found is not None and same and not slot_allocations(found) else None

        await self._swap(name, change, "spec")
        _log.info("commitment_slot.leaves_host", slot=name, host=slot.status.host)
        return LEAVES_S

    async def _write_verified(self, slot: Reservation, result: VerificationResult, half: str) -> None:
        generation = _parent_generation(result.slot)

        def change_spec(found: Reservation | None) -> Reservation | None:
            same = found is not None and found.metadata.generation == slot.metadata.generation
            return replace(found, spec=result.slot.spec) if found is not None and same else None

        def change_status(found: Reservation | None) -> Reservation | None:
            if found is None or _parent_generation(found) != generation:
                return None
            seen = result.slot.status.committed_resource_reservation or CommittedStatus()
            seen = replace(seen, observed_parent_generation=generation)
            changed = replace(found.status, host=result.slot.status.host, committed_resource_reservation=seen)
            return replace(found, status=changed) if changed != found.status else None

        if half == "spec":
            await self._swap(slot.name, change_spec, "spec")
        else:
            await self._swap(slot.name, change_status, "status")

    async def _drop_if_duplicate(self, name: str, vm: str) -> None:
        """The VM leaves this slot if another one keeps it: both came to have it while one of them was not in the cache,
        which was behind, or in the store, which went back."""
        others = self._other_slots_of(name, vm)
        if not others or self._moving((vm,)):
            return
        read_now = [await read(self._store, Reservation, one) for one in (name, *(other.name for other in others))]
        slots = [one for one in read_now if one is not None and vm in slot_allocations(one)]
        hosts = self._placer.fleet.hosts_of_vm(vm)
        keeps = choose_keeper(vm, slots, hosts, self._is_promised) if slots else None
        if keeps is not None and keeps.name != name and vm in confirmed_allocations(keeps):
            await self._drop(name, vm)
            _log.info("commitment_slot.vm_in_another", slot=name, vm=vm, other=keeps.name)

    def _is_promised(self, uuid: str) -> bool:
        found = self._view.find_commitment(uuid)
        return found is not None and not is_over(found.spec, self._clock.now())

    def _other_slots_of(self, name: str, vm: str) -> list[Reservation]:
        """Other slots that list the VM."""
        slots = self._view.informers.reservations.list_by_index(ALLOCATION_INDEX, vm)
        return [one for one in slots if one.name != name]

    async def _drop(self, name: str, vm: str) -> None:
        def remove_vm(found: Reservation | None) -> Reservation | None:
            return None if found is None else without_vms(found, frozenset((vm,)))

        await self._swap(name, remove_vm, "spec")
        await self._swap(name, remove_vm, "status")

    async def _say(self, slot: Reservation, reason: str, message: str) -> None:
        def change(found: Reservation | None) -> Reservation | None:
            if found is None or is_ready(found):
                return None
            old = find_condition(found.status.conditions, "Ready")
            ready = Condition(type="Ready", status="False", reason=reason, message=message)
            seen = found.status.committed_resource_reservation or CommittedStatus()
            echoed = replace(seen, observed_parent_generation=_parent_generation(found))
            if old is not None and (old.reason, old.message, seen) == (reason, message, echoed):
                return None
            conditions = with_condition(found.status.conditions, ready)
            return replace(
                found, status=replace(found.status, conditions=conditions, committed_resource_reservation=echoed)
            )

        await self._swap(slot.name, change, "status")

    async def _swap(self, name: str, change: Callable[[Reservation | None], Reservation | None], half: str) -> None:
        cache = self._view.informers.reservations
        await swap_cached(
            self._store, Reservation, name, change, cache, "spec" if half == "spec" else "status", clock=self._clock
        )


def _place_on(host: str, slot: Reservation | None) -> Reservation | None:
    """The slot that is wanted on the host, unless it is wanted somewhere already."""
    if slot is None or slot.spec.target_host:
        return slot
    return replace(slot, spec=replace(slot.spec, target_host=host))


def _explain_closed(host: Hypervisor) -> str:
    """Why somebody wants no more VMs on it; empty where nobody minds."""
    return host.closed_reason() or host.spec.maintenance


def _parent_generation(slot: Reservation) -> int:
    details = slot.spec.committed_resource_reservation
    return details.parent_generation if details is not None else 0
