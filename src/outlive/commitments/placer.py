"""Chooses hosts for commitment slots by placement's engine, and holds in the ledger what is not in the store yet.

What is held takes room from everybody at once, so that two decisions never count on the same place; it counts on top of
what the store shows until who decided it settles it (docs/design/commitments.md#one-entry). A choice does not yield.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, OutliveError
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import NewSlot, reservation_of, slot_allocations
from outlive.commitments.state import Commitment
from outlive.placement import (
    DOMAIN_NAME_HINT,
    HYPERVISOR_TYPE,
    LOCKED,
    SILENT,
    CapacityQuery,
    Engine,
    Fleet,
    Intent,
    PlacementRequest,
    explain_nowhere,
    image_properties,
    is_ready,
    unused_amounts,
)
from outlive.resources import (
    COMMITTED,
    MEMORY,
    Amounts,
    CommittedSpec,
    CommittedStatus,
    Condition,
    FlavorGroupSpec,
    Reservation,
    ReservationStatus,
)

ACTIVE_REASON: Final = "ReservationActive"
PRE_ALLOCATED_REASON: Final = "PreAllocated"
TRIAL: Final = "trial"
"""Who decides where somebody only tries something out, and puts it back before anybody else runs."""
_EVERYTHING: Final = CapacityQuery(intent=Intent.UNKNOWN)
_OPTIONS: Final = replace(SILENT, lock_reservations=True, max_candidates=1)


class SlotPlacer:
    """See the module."""

    def __init__(self, engine: Engine, settings: CommitmentSettings) -> None:
        self._engine = engine
        self._settings = settings

    def request(self, new: NewSlot, commitment: Commitment, group: FlavorGroupSpec) -> PlacementRequest:
        """The call that chooses a host for a new slot, by its own size."""
        domain = self.domain_of(commitment.project, commitment.domain)
        return self._request(new.name, new.flavor, new.resources, commitment.project, domain, commitment.zone, group)

    def request_for_slot(
        self, slot: Reservation, group: FlavorGroupSpec, ignore: Iterable[str] = ()
    ) -> PlacementRequest:
        """The same for a slot that is there; hosts to ``ignore`` are no candidates."""
        spec = slot.spec
        details = spec.committed_resource_reservation or CommittedSpec()
        project, domain = details.project_id, self.domain_of(details.project_id, details.domain_id)
        asked = self._request(
            slot.name, details.resource_name, spec.resources, project, domain, spec.availability_zone, group
        )
        return replace(asked, ignore_hosts=tuple(ignore))

    def _request(
        self, name: str, flavor: str, need: Amounts, project: str, domain: str, zone: str, group: FlavorGroupSpec
    ) -> PlacementRequest:
        specs = next((one.extra_specs for one in group.flavors if one.name == flavor), {})
        return PlacementRequest(
            resource_id=name,
            project=project,
            zone=zone,
            need=need,
            flavor_name=flavor,
            extra_specs=specs,
            image_properties=image_properties(specs.get(HYPERVISOR_TYPE, "")),
            intent=Intent.RESERVE_FOR_COMMITTED_RESOURCE,
            hints={DOMAIN_NAME_HINT: domain} if domain else {},
            pipeline=self._settings.pipeline_for(group.group_name),
            options=_OPTIONS,
        )

    def domain_of(self, project: str, domain: str) -> str:
        """The name of the domain of what is sold to a project, as calls for its VMs carry it; empty: not known."""
        return self.fleet.domains.name_of(domain) or self.fleet.domains.domain_of_project(project)

    def explain_unresolved(self, project: str, domain: str, group: str) -> str:
        """Why no host can be chosen now: nobody knows the name of the domain, and hosts are set aside by it. Empty
        where it is known, or where the project has no domain."""
        if not domain or self.domain_of(project, domain):
            return ""
        if not self._engine.sets_aside(self._settings.pipeline_for(group)):
            return ""
        return f"the name of domain {domain} of project {project} is not known; Keystone has not listed it yet"

    def choose(self, request: PlacementRequest, *, why: bool = True) -> tuple[str, str]:
        """The best host, or none with the reason, if that is wanted."""
        try:
            ranking = self._engine.rank(request)
            if ranking.target is None:
                return "", explain_nowhere(self._engine.rank(request, why=True)) if why else ""
        except OutliveError as error:
            return "", str(error)
        return ranking.target, ""

    @property
    def fleet(self) -> Fleet:
        """Hosts and reservations as placement has them."""
        return self._engine.fleet

    def has_room(self, slot: Reservation, host: str) -> bool:
        """Whether the slot would fit on the host, beside everything else there; its own room is not counted, and what
        its VMs use that run there already needs none."""
        fleet = self.fleet
        row = fleet.find_row(host)
        if row is None:
            return False
        free = fleet.available_amounts(_EVERYTHING)[:, row]
        entry = fleet.ledger.find_entry(slot.name)
        own = entry.used if entry is not None and row in entry.rows else {}
        there = [vm for vm in slot_allocations(slot) if host in fleet.hosts_of_vm(vm)]
        return all(
            (column := fleet.resources.get(name)) is not None and int(free[column]) + own.get(column, 0) >= amount
            for name, amount in unused_amounts(slot, arriving=there, running=there).items()
        )

    def free_memory(self, host: str) -> int:
        """Bytes that nothing on the host uses or holds; 0 where that is not known."""
        fleet = self.fleet
        row = fleet.find_row(host)
        if row is None:
            return 0
        return max(0, int(fleet.available_amounts(_EVERYTHING)[fleet.resources[MEMORY], row]))

    def reserved_memory(self, name: str) -> int:
        """Bytes that a slot holds beside its VMs."""
        entry = self.fleet.ledger.find_entry(name)
        return entry.used.get(self.fleet.resources[MEMORY], 0) if entry is not None and entry.rows else 0

    def slots_on(self, host: str) -> list[str]:
        """Names of commitment slots that hold something on a host."""
        return [slot.name for slot in self.slots_of(host)]

    def slots_of(self, host: str) -> list[Reservation]:
        """The same slots as the ledger counts them, planned ones included."""
        row = self.fleet.row_of(host)
        entries = self.fleet.ledger.entries_on_row(row) if row is not None else []
        return [entry.reservation for entry in entries if entry.kind == COMMITTED]

    def hold(self, slot: Reservation, by: Hashable = TRIAL) -> None:
        """Count this slot as it is given, whatever the store shows of it, until ``by`` puts it back."""
        self.fleet.decide(slot.name, by, lambda _shown: slot)

    def let_go(self, name: str, by: Hashable = TRIAL) -> None:
        """Count the slot no more, until ``by`` puts it back."""
        self.fleet.decide(name, by, lambda _shown: None)

    def settle_slots(self, names: Iterable[str], by: Hashable = TRIAL) -> None:
        """Count these slots without what ``by`` decided about them."""
        for name in names:
            self.fleet.settle(name, by)


def lock_slot(slot: Reservation) -> Reservation:
    """The slot with a condition that lets no VM use it, not even of its own project, because it may be reverted. It
    still draws further slots of its project to its host."""
    if not is_ready(slot):
        return slot
    conditions = (Condition(type="Ready", status="True", reason=LOCKED),)
    return replace(slot, status=replace(slot.status, conditions=conditions))


def build_placed(new: NewSlot, commitment: Commitment, *, now: float, request_id: str = "") -> Reservation:
    """The slot as it reads once it is there: on its host, with the VM that it covers, if any."""
    slot = reservation_of(new, commitment, now=now, request_id=request_id)
    return replace(slot, status=status_of(slot, commitment.generation))


def status_of(slot: Reservation, generation: int) -> ReservationStatus:
    """The status of a slot that has just been put on its target host: what it is meant for runs there."""
    spec = slot.spec
    details = spec.committed_resource_reservation
    allocations = dict.fromkeys(details.allocations, spec.target_host) if details is not None else {}
    reason = PRE_ALLOCATED_REASON if allocations else ACTIVE_REASON
    return ReservationStatus(
        host=spec.target_host,
        conditions=(Condition(type="Ready", status="True", reason=reason, observed_generation=generation),),
        committed_resource_reservation=CommittedStatus(observed_parent_generation=generation, allocations=allocations),
    )


async def give_way(turn: asyncio.Lock | None, clock: Clock) -> None:
    """Let other tasks work, and those that wait for the turn place something, for example recovery. What was chosen
    before is in the ledger meanwhile; the caller holds the turn again afterwards."""
    if turn is None:
        await clock.sleep(0)
        return
    turn.release()
    cancelled: asyncio.CancelledError | None = None
    try:
        await clock.sleep(0)
    except asyncio.CancelledError as error:
        cancelled = error
    while True:  # also a caller that is cancelled releases the turn at its end, and must not release somebody else's
        try:
            await turn.acquire()
            break
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
