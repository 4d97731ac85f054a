"""S4: a batch of commitment changes applies whole or not at all; and nothing that is sold is sold twice.

What was decided is the creation of a ``CommitmentChange``: all of it counts from then on, and nothing else ever makes,
changes or deletes a commitment in a simulated cluster. Whether all of it has come about is judged at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from outlive.base import LoopClock
from outlive.resources import (
    COMMITTED,
    CommitmentChange,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    Hypervisor,
    Reservation,
    Resource,
    find_condition,
)
from outlive.simulation.judges.rest import is_promised
from outlive.simulation.judges.truth import Truth
from outlive.store import LATE_TASK

IN_FLIGHT_S: Final = 2.0
"""So long after a store went back writes may come that were sent before."""
Wanted = Mapping[str, tuple[str, str, str, int] | None]
"""Commitment, by uuid → project, state, type and bytes or cores after a batch; ``None``: it is deleted."""


class Batches:
    """What was decided, and what of it is there."""

    def __init__(self, truth: Truth) -> None:
        self.promised: dict[str, CommittedResourceSpec | None] = {}
        """Commitment, by uuid → as the last batch that counts says; ``None``: deleted."""
        self._truth = truth
        self._restored_s = -inf
        self._decided: dict[str, tuple[str, dict[str, CommittedResourceSpec | None]]] = {}
        """Request → the change that it became, and all commitments as they are then."""

    def judge_write(self, before: Resource | None, after: Resource | None) -> str:
        """A write of one of its objects; what is wrong with it."""
        if isinstance(after, CommitmentChange):
            if before is not None or after.part_of or after.phase != "decided":
                return ""
            steps, missing = self._collect_steps(after)
            self.promised |= {step.uuid: step.after for step in steps}
            self._decided[after.request_id] = (after.name, dict(self.promised))
            return f"counts without {missing} of its {after.parts} further documents" if missing else ""
        found = after if after is not None else before
        if not isinstance(found, CommittedResource):
            return ""
        new = after.spec if isinstance(after, CommittedResource) else None
        if isinstance(before, CommittedResource) and before.spec == new:
            return ""
        uuid = found.spec.commitment_uuid
        task = asyncio.current_task()
        if task is not None and task.get_name() == LATE_TASK:
            # It was sent long ago, and its sender was answered that the outcome is not known: no process can take that
            # back. It shows as a commitment that Limes does not list.
            self.promised[uuid] = new
            return ""
        if LoopClock().monotonic() - self._restored_s <= IN_FLIGHT_S:
            return ""  # it was on its way when the store went back; at rest it must be as the store says
        if uuid not in self.promised:
            return "is written, and no batch says so"
        wanted = self.promised[uuid]
        return (
            "" if new == wanted else f"becomes {_describe_spec(new)}, and the last batch says {_describe_spec(wanted)}"
        )

    def judge_answer(self, request: str, accepted: bool, wanted: Wanted) -> str:
        """Limes was answered that a batch counts, or not. One that changes nothing need not be recorded."""
        name, promised = self._decided.get(request, ("", self.promised))
        if not accepted:
            return f"was refused, and {name} counts" if name else ""
        other = [uuid for uuid, new in wanted.items() if _summarise_spec(promised.get(uuid)) != new]
        return f"was accepted, and {name or 'nothing'} says otherwise of {', '.join(other)}" if other else ""

    def handle_restore(self) -> None:
        """A backup was put back: what counts is what it says, whatever was decided since."""
        store = self._truth.store
        self._restored_s = LoopClock().monotonic()
        found = {one.spec.commitment_uuid: one.spec for one in store.list_all(CommittedResource)}
        self.promised = {**dict.fromkeys(self.promised), **found}
        waiting = [one for one in store.list_all(CommitmentChange) if one.phase == "decided" and not one.part_of]
        for change in sorted(waiting, key=lambda one: one.name):
            self.promised |= {step.uuid: step.after for step in self._collect_steps(change)[0]}

    def judge_rest(self) -> Iterator[tuple[str, str]]:
        """Nothing has changed for a while: batches, commitments and slots that do not agree."""
        store = self._truth.store
        for change in store.list_all(CommitmentChange):
            if change.phase == "decided" and not change.part_of:
                yield change.name, "was decided, and is not applied"
        found = {one.spec.commitment_uuid: one for one in store.list_all(CommittedResource)}
        for uuid, wanted in self.promised.items():
            spec = found[uuid].spec if uuid in found else None
            if spec != wanted:
                yield uuid, f"is {_describe_spec(spec)}, and the last batch says {_describe_spec(wanted)}"
        yield from self._check_slots(found)

    def _check_slots(self, commitments: dict[str, CommittedResource]) -> Iterator[tuple[str, str]]:
        lost = {host.name for host in self._truth.store.list_all(Hypervisor) if host.status.lost}
        held: dict[str, int] = {}
        where: dict[str, str] = {}
        for slot in self._truth.store.list_all(Reservation):
            details = slot.spec.committed_resource_reservation
            if slot.spec.type != COMMITTED or details is None:
                continue
            owner = commitments.get(details.commitment_uuid)
            if owner is None:
                yield slot.name, f"holds room for commitment {details.commitment_uuid}, which is not there"
            elif owner.spec.project_id != details.project_id:
                yield slot.name, f"is for {details.project_id}, and its commitment is of {owner.spec.project_id}"
            if is_promised(slot) and slot.status.host and (slot.status.host not in lost or details.allocations):
                # on a lost host it waits for its VMs
                held[details.commitment_uuid] = held.get(details.commitment_uuid, 0) + slot.spec.resources.memory_bytes
            for vm in details.allocations:
                if vm in where:
                    yield vm, f"is in slot {where[vm]} and in slot {slot.name}"
                where[vm] = slot.name
        for uuid, one in commitments.items():
            ready = find_condition(one.status.conditions, "Ready")
            total = one.spec.total if one.spec.resource_type == "memory" else 0
            if ready is not None and ready.status == "True" and held.get(uuid, 0) < total:
                yield uuid, f"is said to be ready with {total:,} bytes, and slots hold {held.get(uuid, 0):,}"

    def _collect_steps(self, change: CommitmentChange) -> tuple[list[CommitmentStep], int]:
        """Everything that it does, and how many of its documents are missing."""
        all_of = self._truth.store.list_all(CommitmentChange) if change.parts else ()
        there = [one for one in all_of if one.part_of == change.nonce]
        return [*change.steps, *(step for one in there for step in one.steps)], change.parts - len(there)


def _summarise_spec(spec: CommittedResourceSpec | None) -> tuple[str, str, str, int] | None:
    return (spec.project_id, spec.state, spec.resource_type, spec.total) if spec is not None else None


def _describe_spec(spec: CommittedResourceSpec | None) -> str:
    return f"{spec.state} with {spec.amount} of {spec.project_id}" if spec is not None else "gone"
