"""Weighers on failover slots: towards the VM's own in an evacuation, together when new ones are made."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from outlive.placement.blocking import is_ready
from outlive.placement.columns import FloatVector, Rows
from outlive.placement.fleet import Fleet
from outlive.placement.request import GROUP_HINT, Intent
from outlive.placement.steps import Levels, LevelWeigher, Run, Weigher
from outlive.resources import FAILOVER


def own_slot_rows(fleet: Fleet, vm: str) -> list[int]:
    """Rows of the hosts on which a ready slot lists the VM."""
    bucket = fleet.ledger.slots_of_vm.get(vm)
    if bucket is None:
        return []
    return sorted({entry.host_row for entry in bucket.entries.values() if entry.host_row >= 0})


def slots_of_vm_on(fleet: Fleet, vm: str, host: str) -> list[str]:
    """Names of the ready slots of the VM on a host."""
    bucket, row = fleet.ledger.slots_of_vm.get(vm), fleet.row(host)
    if bucket is None or row is None:
        return []
    return sorted(name for name, entry in bucket.entries.items() if entry.host_row == row)


def own_slot_hosts(fleet: Fleet, vm: str) -> set[str]:
    """The same as names, from the reservations themselves."""
    hosts: set[str] = set()
    for reservation in fleet.reservations():
        members, consumer = reservation.status.failover_reservation, reservation.status.consumer
        listed = (consumer.vm,) if consumer is not None else members.allocations if members is not None else ()
        if reservation.spec.type != FAILOVER or vm not in listed:
            continue
        if is_ready(reservation):
            hosts.add(reservation.status.host)
    return {host for host in hosts if fleet.host(host) is not None}


class EvacuationParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Scores of hosts with and without a slot of the VM."""

    failover_host_weight: float = 1.0
    default_host_weight: float = 0.1


class FailoverEvacuation(LevelWeigher):
    """In an evacuation, hosts that hold a slot of the VM first (placement.md#kvm_failover_evacuation)."""

    name = "kvm_failover_evacuation"
    params_type = EvacuationParams

    def skips(self, run: Run) -> bool:
        """No evacuation."""
        return run.request.intent is not Intent.EVACUATE

    def levels(self, run: Run) -> Levels:
        """One score for own hosts, another for the others."""
        own = own_slot_rows(run.fleet, run.request.resource_id)
        return Levels(self.params.default_host_weight, own, self.params.failover_host_weight)

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        own = own_slot_hosts(run.fleet, run.request.resource_id)
        return [self.params.failover_host_weight if host in own else self.params.default_host_weight for host in hosts]


class ConsolidationParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How strongly slots attract each other, and how strongly those of one group repel."""

    total_count_weight: float = 1.0
    same_spec_penalty: float = 0.1

    def __post_init__(self) -> None:
        """Attraction must outweigh repulsion."""
        total, penalty = self.total_count_weight, self.same_spec_penalty
        if not (total >= 0 and penalty >= 0):
            raise ValueError("totalCountWeight and sameSpecPenalty must not be negative")
        if penalty and penalty >= total:
            raise ValueError(f"sameSpecPenalty {penalty} must be less than totalCountWeight {total}")


class SlotConsolidation(Weigher):
    """Optional: packs new slots on few hosts, preferring those with fewer of the same group
    (docs/reference/placement.md#kvm_failover_reservation_consolidation).
    """

    name = "kvm_failover_reservation_consolidation"
    params_type = ConsolidationParams
    statistic = "slots"

    def skips(self, run: Run) -> bool:
        """No search for a new slot, or there is no slot yet."""
        return run.request.intent is not Intent.RESERVE_FOR_FAILOVER or run.fleet.ledger.slots_of_group.get("") is None

    def weigh(self, run: Run, at: Rows) -> FloatVector:
        """Share of all slots on the host, less the penalty for those of the group."""
        everything = run.fleet.ledger.slots_of_group.get("")
        group = run.request.hints.get(GROUP_HINT, "")
        same = run.fleet.ledger.slots_of_group.get(group) if group else None
        if everything is None:
            return np.zeros(len(at))
        total = len(everything.entries)
        here = np.bincount(everything.host_rows(), minlength=run.length)[at]
        scores = self.params.total_count_weight / total * here
        if same is not None:
            scores = (
                scores
                - self.params.same_spec_penalty / total * (np.bincount(same.host_rows(), minlength=run.length)[at])
            )
        return np.asarray(scores, dtype=np.float64)

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        group = run.request.hints.get(GROUP_HINT, "")
        slots = [
            (slot.status.host, slot.spec.failover_reservation.resource_group if slot.spec.failover_reservation else "")
            for slot in run.fleet.reservations()
            if slot.spec.type == FAILOVER and slot.status.host and is_ready(slot)
        ]
        scores: list[float] = []
        for host in hosts:
            here = [of for where, of in slots if where == host and run.facts(host) is not None]
            score = self.params.total_count_weight / len(slots) * len(here)
            if group and any(of == group for _, of in slots):
                score -= self.params.same_spec_penalty / len(slots) * here.count(group)
            scores.append(score)
        return scores
