"""Gathers what an explanation of a commitment without capacity rests on, by asking placement as a batch would.

Slots that find a host are held while the others look for one, and are let go again at the end: nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from outlive.base import OutliveError, as_instant
from outlive.commitments.acceptance import HeadroomOutcome, check_headroom
from outlive.commitments.explanation import (
    ClosedRoom,
    Ending,
    ExplanationInput,
    HostRoom,
    MissingCores,
    MissingSlots,
    StepCount,
)
from outlive.commitments.placer import SlotPlacer, build_placed
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import SlotLimitExceeded, SlotPlan
from outlive.commitments.state import Commitment, from_spec, has_slots, is_active, normalise_time
from outlive.commitments.view import CommitmentView
from outlive.placement import MILLI, SILENT, CapacityQuery, Engine, Intent, PlacementRequest, placed_on, unused_amounts
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    IN_FLIGHT,
    WORKING_CONDITIONS,
    ZONE_LABEL,
    FlavorGroupSpec,
    Hypervisor,
    explain_out_of_service,
)

_EMPTY: Final = replace(
    SILENT,
    read_only=True,
    assume_empty_hosts=True,
    ignored_reservation_types=(COMMITTED, FAILOVER, IN_FLIGHT),
)
_LOCKED: Final = CapacityQuery(intent=Intent.RESERVE_FOR_COMMITTED_RESOURCE, locked=True)


class Shortage:
    """See the module."""

    def __init__(self, view: CommitmentView, placer: SlotPlacer, engine: Engine, settings: CommitmentSettings) -> None:
        self._view = view
        self._placer = placer
        self._engine = engine
        self._settings = settings

    def collect_facts(self, commitment: Commitment, now: float) -> ExplanationInput:
        """What an explanation of the commitment rests on: of one that is there, or of one that somebody asks for."""
        group = self._view.groups_by_name().get(commitment.group)
        refusal = ""
        if group is None or not group.flavors:
            refusal = f"flavor group not found: {commitment.group}"
        elif (
            not self._settings.group_settings(commitment.group).committed_resource(commitment.type).handles_commitments
        ):
            refusal = f'flavor group "{commitment.group}" is not configured to handle {commitment.type} commitments'
        if refusal or group is None:
            return ExplanationInput(commitment=commitment, refusal=refusal, now=now)
        if commitment.type == "cores":
            return self._explain_cores(commitment, now)
        if not has_slots(commitment, now):
            return ExplanationInput(commitment=commitment, refusal="it is not active, and has no slots", now=now)
        try:
            plan = self._view.slot_plan(commitment, self._view.list_slots(commitment.uuid), group, self._settings)
        except SlotLimitExceeded as error:
            return ExplanationInput(commitment=commitment, refusal=error.message, now=now)
        return self._explain_slots(commitment, group, plan, now)

    def _explain_slots(
        self, commitment: Commitment, group: FlavorGroupSpec, plan: SlotPlan, now: float
    ) -> ExplanationInput:
        held: list[str] = []
        lost: dict[tuple[str, int, int], list[PlacementRequest]] = {}
        found = 0

        def looked_for(name: str, request: PlacementRequest) -> str:
            """Its host. Where a slot of its size found none, neither does this one: meanwhile nothing became free."""
            size = _size_of(request)
            host = "" if size in lost else self._placer.choose(request)[0]
            if host:
                held.append(name)
            else:
                lost.setdefault(size, []).append(request)
            return host

        try:
            for gone in plan.delete:
                held.append(gone.name)
                self._placer.let_go(gone.name)
            for slot in plan.keep:
                if slot.spec.target_host:
                    found += 1
                elif host := looked_for(slot.name, self._placer.request_for_slot(slot, group)):
                    self._placer.hold(replace(slot, spec=replace(slot.spec, target_host=host)))
                    found += 1
            for new in plan.create:
                if host := new.host or looked_for(new.name, self._placer.request(new, commitment, group)):
                    held.append(new.name)
                    self._placer.hold(build_placed(replace(new, host=host), commitment, now=now))
                    found += 1
            missing = tuple(self._find_missing(requests) for requests in lost.values())
        finally:
            self._placer.settle_slots(held)
        return ExplanationInput(
            commitment=commitment,
            expected=plan.total,
            placed=found,
            missing=missing,
            endings=self._list_endings(commitment, now) if missing else (),
            now=now,
        )

    def _find_missing(self, requests: Sequence[PlacementRequest]) -> MissingSlots:
        """What hosts say of slots of one size, beside everything that is held now."""
        request, fleet = requests[0], self._engine.fleet
        flavor, cpu, memory = _size_of(request)
        steps: dict[str, int] = {}
        try:
            for reason in self._engine.rank(request, why=True).rejected.values():
                steps[reason.step] = steps.get(reason.step, 0) + 1
            open_hosts = set(self._engine.rank(replace(request, options=_EMPTY)).hosts)
            closed_hosts = self._find_closed_hosts(request)
        except OutliveError as error:
            steps[str(error)] = len(fleet)
            open_hosts, closed_hosts = set(), {}
        free = fleet.available_amounts(_LOCKED)

        def free_amounts(host: str) -> tuple[int, int]:
            row = fleet.find_row(host)
            return (0, 0) if row is None else (max(0, int(free[0, row])), max(0, int(free[1, row])))

        return MissingSlots(
            flavor=flavor,
            cpu_milli=cpu,
            memory_bytes=memory,
            count=len(requests),
            hosts=len(fleet),
            steps=tuple(StepCount(step=step, hosts=count) for step, count in sorted(steps.items())),
            candidates=tuple(
                HostRoom(host=host, cpu_milli=cpu, memory_bytes=memory)
                for host in sorted(open_hosts)
                for cpu, memory in (free_amounts(host),)
            ),
            closed=tuple(
                ClosedRoom(host=host, cpu_milli=cpu, memory_bytes=memory, why=why)
                for host, why in sorted(closed_hosts.items())
                for cpu, memory in (free_amounts(host),)
            ),
        )

    def _find_closed_hosts(self, request: PlacementRequest) -> dict[str, str]:
        """Hosts of the zone that would be candidates in service → what keeps them out of it. Lost ones are not
        among them: nobody brings these back by a command."""
        fleet = self._engine.fleet
        hosts = [host for name in fleet.names if (host := fleet.find_host(name)) is not None]
        out = {
            host.name: host
            for host in hosts
            if host.metadata.labels.get(ZONE_LABEL) == request.zone
            and explain_out_of_service(host)
            and not host.status.lost
        }
        if not out:
            return {}
        try:
            for host in out.values():
                fleet.upsert_host(_open_host(host))
            found = self._engine.rank(replace(request, options=_EMPTY)).hosts
        finally:
            for host in out.values():
                fleet.upsert_host(host)
        return {name: explain_out_of_service(out[name]) for name in found if name in out}

    def _list_endings(self, commitment: Commitment, now: float) -> tuple[Ending, ...]:
        """Slots of other commitments that end, with what they hold beside their VMs."""
        found: list[Ending] = []
        for other in self._view.informers.commitments.items():
            end = normalise_time(other.spec.end_time)
            if end is None or other.spec.commitment_uuid == commitment.uuid or as_instant(end) <= now:
                continue
            for slot in self._view.list_slots(other.spec.commitment_uuid):
                host = placed_on(slot)
                held = unused_amounts(slot, running=self._engine.fleet.instances_on(host))
                if host and (held.cpu_milli or held.memory_bytes):
                    found.append(
                        Ending(
                            commitment=other.spec.commitment_uuid,
                            project=other.spec.project_id,
                            host=host,
                            cpu_milli=held.cpu_milli,
                            memory_bytes=held.memory_bytes,
                            end=as_instant(end),
                        )
                    )
        return tuple(found)

    def _explain_cores(self, commitment: Commitment, now: float) -> ExplanationInput:
        view = self._view
        verdict = check_headroom(
            commitment,
            view.find_capacity(commitment.group, commitment.zone),
            view.informers.commitments.items(),
            now=now,
            held=view.occupied_cores(commitment, view.informers.commitments.items()),
        )
        endings = tuple(
            Ending(
                commitment=one.uuid,
                project=one.project,
                host="",
                cpu_milli=one.cores * MILLI,
                memory_bytes=0,
                end=as_instant(one.end),
            )
            for other in view.informers.commitments.items()
            if other.spec.resource_type == "cores" and other.spec.commitment_uuid != commitment.uuid
            for one in (from_spec(other.spec),)
            if (one.group, one.zone) == (commitment.group, commitment.zone) and one.end is not None
            if is_active(other.spec, now)
        )
        why = "" if verdict.outcome is HeadroomOutcome.ACCEPTED else verdict.message
        cores = MissingCores(available=verdict.available, message=why)
        return ExplanationInput(commitment=commitment, cores=cores, endings=endings, now=now)


def _size_of(request: PlacementRequest) -> tuple[str, int, int]:
    return request.flavor_name, request.need.cpu_milli, request.need.memory_bytes


def _open_host(host: Hypervisor) -> Hypervisor:
    """The host with nothing that keeps it out of service."""
    names = {name for name, _ in WORKING_CONDITIONS}
    conditions = tuple(one for one in host.status.conditions if one.type not in names)
    return replace(
        host,
        spec=replace(host.spec, maintenance="", drain=False),
        status=replace(host.status, domain_state="", conditions=conditions),
    )
