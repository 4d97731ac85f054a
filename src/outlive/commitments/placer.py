"""Chooses hosts for commitment slots by placement's engine, and holds in the ledger what is not in the store yet.

What is held takes room from everybody at once, so that two decisions never count on the same place; it stays in the
ledger until the store shows the slot, or is put back (docs/reference/commitments.md#batches). A choice does not yield.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from outlive.base.errors import OutliveError
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import NewSlot, reservation_of
from outlive.commitments.state import Commitment
from outlive.placement.engine import Engine
from outlive.placement.ranking import why_nowhere
from outlive.placement.request import HYPERVISOR_TYPE, SILENT, Intent, PlacementRequest, image_properties
from outlive.resources import CommittedStatus, Condition, FlavorGroupSpec, Reservation, ReservationStatus
from outlive.runtime.informer import Informer

ACTIVE_REASON: Final = "ReservationActive"
PRE_ALLOCATED_REASON: Final = "PreAllocated"
_OPTIONS: Final = replace(SILENT, lock_reservations=True, max_candidates=1)


class SlotPlacer:
    """See the module."""

    def __init__(self, engine: Engine, settings: CommitmentSettings, reservations: Informer[Reservation]) -> None:
        self._engine = engine
        self._settings = settings
        self._reservations = reservations

    def request(
        self, name: str, new: NewSlot, commitment: Commitment, group: FlavorGroupSpec, ignore: Iterable[str] = ()
    ) -> PlacementRequest:
        """The call that chooses a host for a slot of this size; hosts to ``ignore`` are no candidates."""
        specs = next((flavor.extra_specs for flavor in group.flavors if flavor.name == new.flavor), {})
        return PlacementRequest(
            resource_id=name,
            project=commitment.project,
            zone=commitment.zone,
            need=new.resources,
            flavor_name=new.flavor,
            extra_specs=specs,
            image_properties=image_properties(specs.get(HYPERVISOR_TYPE, "")),
            intent=Intent.RESERVE_FOR_COMMITTED_RESOURCE,
            ignore_hosts=tuple(ignore),
            pipeline=self._settings.pipeline(commitment.group),
            options=_OPTIONS,
        )

    def choose(self, request: PlacementRequest) -> tuple[str, str]:
        """The best host, or none with the reason."""
        try:
            ranking = self._engine.rank(request)
            if ranking.target is None:
                return "", why_nowhere(self._engine.rank(request, why=True))
        except OutliveError as error:
            return "", str(error)
        return ranking.target, ""

    def hold(self, slot: Reservation) -> None:
        """Count this slot as it is given, whatever the store says of it."""
        self._engine.fleet.upsert_reservation(slot)

    def let_go(self, name: str) -> None:
        """Count the slot no more."""
        self._engine.fleet.remove_reservation(name)

    def put_back(self, names: Iterable[str]) -> None:
        """Count these slots as the store has shown them last."""
        for name in names:
            shown = self._reservations.get(name)
            if shown is None:
                self.let_go(name)
            else:
                self.hold(shown)


def placed(new: NewSlot, commitment: Commitment, *, now: float, request_id: str = "") -> Reservation:
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
