"""Which confirmed commitments could not be filled after the loss of any one host.

The slots of a host are taken away and placed again elsewhere, host by host, in the one account and by the one placement
(docs/reference/commitments.md#host-loss). A question about one host does not yield, and nothing is left of it: slots
that are planned and not in the store yet are in the ledger afterwards as they were before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import Clock, as_instant, get_logger
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.state import is_over
from outlive.commitments.view import CommitmentView
from outlive.resources import CommittedResource, Reservation, ReservationStatus
from outlive.runtime import Metrics, Periodic

LOOK_S: Final = 3600.0
"""How often all hosts are tried for the metric."""
PAUSE_S: Final = 0.05
"""The pause between two hosts: others place meanwhile."""
LOGGED: Final = 10
"""Commitments that the log names."""

_log = get_logger("commitments.survival")


class Unfilled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commitment of which slots would find no other host if one were lost."""

    commitment: str
    project: str
    group: str
    zone: str
    host: str
    slots: int
    memory_bytes: int


def find_unfilled_after_loss(host: str, view: CommitmentView, placer: SlotPlacer, now: float) -> tuple[Unfilled, ...]:
    """The confirmed commitments that could not be filled without the host, the oldest first, which are placed first."""
    slots, groups, found = placer.slots_of(host), view.groups_by_name(), list[Unfilled]()
    by_commitment: dict[str, list[Reservation]] = {}
    for slot in slots:
        if (details := slot.spec.committed_resource_reservation) is not None:
            by_commitment.setdefault(details.commitment_uuid, []).append(slot)
    commitments = [one for uuid in by_commitment if (one := view.find_commitment(uuid)) is not None]
    confirmed = [one for one in commitments if one.spec.state == "confirmed" and not is_over(one.spec, now)]
    try:
        for slot in slots:
            placer.let_go(slot.name)
        for cr in sorted(confirmed, key=_age_key):
            group = groups.get(cr.spec.flavor_group_name)
            left: list[Reservation] = []
            for slot in by_commitment[cr.spec.commitment_uuid]:
                request = placer.request_for_slot(slot, group, (host,)) if group is not None else None
                other = placer.choose(request, why=False)[0] if request is not None else ""
                if other:
                    placer.hold(replace(slot, spec=replace(slot.spec, target_host=other), status=ReservationStatus()))
                else:
                    left.append(slot)
            if left:
                found.append(
                    Unfilled(
                        commitment=cr.spec.commitment_uuid,
                        project=cr.spec.project_id,
                        group=cr.spec.flavor_group_name,
                        zone=cr.spec.availability_zone,
                        host=host,
                        slots=len(left),
                        memory_bytes=sum(slot.spec.resources.memory_bytes for slot in left),
                    )
                )
    finally:
        placer.settle_slots(slot.name for slot in slots)
    return tuple(found)


def _age_key(cr: CommittedResource) -> tuple[float, str]:
    start = cr.spec.start_time
    return as_instant(start) if start is not None else 0.0, cr.spec.commitment_uuid


class HostLossMetric:
    """Tries every host now and then, and counts the commitments that could not be filled."""

    def __init__(
        self, view: CommitmentView, placer: SlotPlacer, *, turn: asyncio.Lock, clock: Clock, metrics: Metrics
    ) -> None:
        self._view = view
        self._placer = placer
        self._turn = turn
        self._clock = clock
        self._gauge = metrics.add_gauge(
            "committed_resource_unfilled_after_host_loss",
            "Confirmed commitments that could not be filled after the loss of some one host",
            ("flavor_group", "availability_zone"),
        )

    async def run(self) -> None:
        """Until cancelled."""
        await Periodic(self.measure, LOOK_S, clock=self._clock).run()

    async def measure(self) -> None:
        """Every host, one after the other."""
        found: dict[str, Unfilled] = {}
        for host in [one.name for one in self._view.informers.hypervisors.items()]:
            if self._placer.slots_of(host):
                async with self._turn:
                    for one in find_unfilled_after_loss(host, self._view, self._placer, self._clock.now()):
                        found.setdefault(one.commitment, one)
                await self._clock.sleep(PAUSE_S)
        counts = Counter((one.group, one.zone) for one in found.values())
        self._gauge.clear()
        for place, count in counts.items():
            self._gauge.labels(*place).set(count)
        for one in list(found.values())[:LOGGED]:
            _log.warning("commitment.not_filled_after_loss", commitment=one.commitment, host=one.host, slots=one.slots)
