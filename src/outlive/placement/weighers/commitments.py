"""The weigher on commitment slots."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.placement.blocking import is_ready
from outlive.placement.request import GROUP_HINT, Intent
from outlive.placement.steps import Levels, LevelWeigher, Run
from outlive.resources import COMMITTED, Reservation


class CommitmentParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Scores of hosts with and without a usable commitment slot."""

    reservation_host_weight: float = 1.0
    default_host_weight: float = 0.1


class CommittedReservations(LevelWeigher):
    """Hosts with a commitment slot that has room for the VM first (placement.md#kvm_committed_resource_reservation).

    Without the hint the group is taken from the flavor, because ordinary requests never carry the hint.
    """

    name = "kvm_committed_resource_reservation"
    params_type = CommitmentParams

    def skips(self, run: Run) -> bool:
        """A search for a failover slot, or the group is unknown."""
        return run.request.intent is Intent.RESERVE_FOR_FAILOVER or not _group(run)

    def levels(self, run: Run) -> Levels:
        """One score for hosts with a usable slot, another for the others."""
        params: CommitmentParams = self.params
        bucket = run.fleet.ledger.commitments.get((run.request.project, _group(run)))
        entries = bucket.entries.values() if bucket is not None else ()
        rows = [e.host_row for e in entries if e.host_row >= 0 and _has_room(run, e.reservation)]
        return Levels(params.default_host_weight, rows, params.reservation_host_weight)

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        group, usable = _group(run), set()
        for reservation in run.fleet.reservations():
            details = reservation.spec.committed_resource_reservation
            if (
                reservation.spec.type == COMMITTED
                and is_ready(reservation)
                and details is not None
                and (details.project_id, details.resource_group) == (run.request.project, group)
                and _has_room(run, reservation)
                and run.facts(reservation.status.host) is not None
            ):
                usable.add(reservation.status.host)
        params: CommitmentParams = self.params
        return [params.reservation_host_weight if host in usable else params.default_host_weight for host in hosts]


def _group(run: Run) -> str:
    hinted = run.request.hints.get(GROUP_HINT)
    if hinted is not None:
        return hinted
    return run.request.group_name(run.settings.flavor_group_keys)


def _has_room(run: Run, reservation: Reservation) -> bool:
    """Whether a slot of the request's zone has memory left for one instance."""
    details = reservation.spec.committed_resource_reservation
    if details is None or reservation.spec.availability_zone != run.request.zone:
        return False
    taken = sum(allocation.resources.memory_bytes for allocation in details.allocations.values())
    return reservation.spec.resources.memory_bytes - taken >= run.request.need.memory_bytes
