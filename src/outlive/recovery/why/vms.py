"""Why a VM runs where it runs, or does not run: its recovery, the rules that it goes against, what helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from outlive.failover import FAIL_BACK, REBALANCE, FailBackResult, RebalanceResult
from outlive.node import ClusterLiveness, HostLife, VmLife, VmLiveness, running_entries
from outlive.node.vm import current_order, deletion_of
from outlive.placement import AFFINITY, Peers, demands_of, facts_of, find_objections
from outlive.recovery.balance import describe_move
from outlive.recovery.groups import helpful_move
from outlive.recovery.states import is_waiting, summary_of, waits_for
from outlive.recovery.why.chain import (
    Link,
    WhyAnswer,
    find_departed,
    first_remedy,
    is_of_fence,
    link_condemnation,
    link_proofs,
    list_disarmed,
    list_rate_faults,
    show_decisions,
)
from outlive.recovery.why.network import link_network
from outlive.resources import (
    DecisionRecord,
    Hypervisor,
    Membership,
    Recovery,
    RecoveryPhase,
    Reservation,
    VirtualMachine,
    decode_as,
    is_to_run,
)
from outlive.resources.reasons import HoldReason, Reason, VmReason, render
from outlive.store import Store, list_all, read

CLOSED_BY_RULES: Final = (HoldReason.RULED_OUT, HoldReason.REFUSED)
"""Reasons behind which a rule of an affinity group may be."""
STORAGE_REMEDY: Final = (
    "check its storage, and its host's network to it; to have it start elsewhere, set spec.recovery.storageLost"
)


async def explain_vm(
    store: Store, vm: VirtualMachine, records: list[DecisionRecord], life: ClusterLiveness
) -> WhyAnswer:
    """The answer for a VM; ``records``: all decisions, ``life``: how its hosts are."""
    recovery, now = vm.status.recovery, life.liveness_of_vm(vm)
    well = now.state in (VmLife.RUNNING, VmLife.STOPPED)
    mine = [one for one in records if one.subject == vm.name]
    network = await link_network(store, vm)
    if vm.deleting:
        said, since = deletion_of(vm), vm.metadata.deletion_timestamp
        steps = recovery.steps if recovery is not None else ()
        return WhyAnswer(
            subject=vm.name,
            summary=said.text,
            settled=False,
            chain=(
                Link(at=since, text="somebody deleted it"),
                *_link_holders(vm, life),
                *await list_disarmed(store),
                *(Link(at=step.at, text=step.message) for step in steps),
            ),
            remedy=(recovery.remedy if recovery is not None and recovery.unfinished else "") or said.remedy,
            decisions=show_decisions(mine),
        )
    if recovery is None:
        where, waits = vm.host or "no host", waits_for(vm)
        away = await find_departed(store, vm.host) if is_to_run(vm) else None
        then = f"waits there for {', '.join(waits)}" if waits else "was never recovered from a dead one"
        then = f"{away.said}; {away.waits}" if away is not None else then
        doubt = await list_rate_faults(store) if is_to_run(vm) else []
        broken = await _list_broken_rules(store, vm)
        summary = f"{vm.name} is {now.text}; it is assigned to {where}, and {then}"
        return WhyAnswer(
            subject=vm.name,
            summary=summary,
            settled=well and not waits and away is None and not doubt and not _is_starved(vm) and network.settled,
            chain=(
                *_link_holders(vm, life),
                *network.links,
                *_link_storage_loss(vm),
                *_link_start_order(vm),
                *_link_rebalancing(vm.name, records),
                *_link_failback(vm, records),
                *_link_policy(vm),
                *_link_broken_rules(broken),
                *await list_disarmed(store),
                *(Link(text=one.message) for one in doubt),
            ),
            remedy=away.remedy
            if away is not None
            else _remedy_of_storage(vm)
            or _remedy_of_waiting(vm)
            or first_remedy(doubt)
            or await _remedy_of_rules(store, vm, broken)
            or network.remedy,
            decisions=show_decisions(mine),
        )
    fenced = [one for one in records if one.subject == recovery.origin and is_of_fence(one, recovery.fence)]
    chain: list[Link] = [*link_condemnation(fenced, await _find_fencer(store, recovery.origin, recovery.fence))]
    chain += link_proofs(recovery.proofs)
    chain += [Link(at=step.at, text=step.message) for step in recovery.steps]
    slot = await read(store, Reservation, recovery.slot) if recovery.slot else None
    if slot is not None:
        taken = slot.status.consumer.vm if slot.status.consumer is not None else "nobody"
        chain.append(Link(text=f"slot {slot.name} on {slot.status.host} is taken by {taken}"))
    chain += await _link_contradicted_proofs(store, vm)
    chain += [
        *_link_start_order(vm),
        *_link_holders(vm, life),
        *network.links,
        *_link_storage_loss(vm),
        *_link_policy(vm),
        *_link_rebalancing(vm.name, records),
        *_link_failback(vm, records),
    ]
    broken = await _list_broken_rules(store, vm) if recovery.phase is RecoveryPhase.RECOVERED else []
    chain += _link_broken_rules(broken)
    chain += await list_disarmed(store)
    return WhyAnswer(
        subject=vm.name,
        summary=render(summary_of(vm)).text + _describe_changes(vm, recovery, now),
        settled=well and recovery.phase is RecoveryPhase.RECOVERED and not _is_starved(vm) and network.settled,
        chain=tuple(chain),
        remedy=(await _remedy_of_rules(store, vm, broken) if not broken else "")
        or recovery.remedy
        or _remedy_of_storage(vm)
        or _remedy_of_waiting(vm)
        or await _remedy_of_rules(store, vm, broken)
        or network.remedy,
        decisions=show_decisions([*fenced, *mine]),
    )


async def _find_fencer(store: Store, host: str, fence: str) -> str:
    """Who carries that fence, as far as the host's Membership still shows."""
    member = await read(store, Membership, host)
    return member.record.fence.by if member is not None and member.record.fence.id == fence else ""


def _link_holders(vm: VirtualMachine, life: ClusterLiveness) -> Iterator[Link]:
    runs = running_entries(vm)
    for holder in vm.status.holders:
        host = life.liveness_of_host(holder.hypervisor)
        seen = f", seen {holder.seen}" if holder.seen else ", not seen running"
        if holder.seen == "running" and holder not in runs:
            seen = ", where its guest ended in the move"
        elif holder.seen and host.state is not HostLife.ALIVE:
            seen = f", last seen {holder.seen}: {holder.hypervisor} is {host.text}"
        role = " (incoming)" if holder.role else ""
        yield Link(text=f"{holder.hypervisor} holds it in epoch {holder.epoch}, run {holder.run_id}{role}{seen}")


def _describe_changes(vm: VirtualMachine, recovery: Recovery, now: VmLiveness) -> str:
    """Where it is now, if it was moved after its recovery, and how it is, if it does not run any more."""
    if recovery.phase is not RecoveryPhase.RECOVERED:
        return ""
    moved = f"; it was moved since, and is assigned to {vm.host}" if vm.host not in ("", recovery.host) else ""
    return moved if now.state is VmLife.RUNNING else f"{moved}; now it is {now.text}"


async def _link_contradicted_proofs(store: Store, vm: VirtualMachine) -> list[Link]:
    """That a proof by which it was restarted turned out wrong."""
    recovery = vm.status.recovery
    member = await read(store, Membership, recovery.origin) if recovery is not None else None
    if recovery is None or member is None:
        return []
    wrong = [one for one in recovery.proofs if one.kind in member.record.distrusted]
    return [
        Link(
            text=f"the proof by {one.kind} that {recovery.origin} was dead turned out wrong: it may have run twice; "
            "check its file systems"
        )
        for one in wrong
    ]


def _link_start_order(vm: VirtualMachine) -> Iterator[Link]:
    """For whom it waits where it is assigned, or without whom it was started there."""
    said = current_order(vm)
    if said is not None:
        yield Link(at=said.since, text=f"on {said.hypervisor} it {said.detail}")


def _remedy_of_waiting(vm: VirtualMachine) -> str:
    waits = waits_for(vm)
    if not waits:
        return ""
    return f"see outlive why {waits[0]}; to start it now, take {', '.join(waits)} out of its spec.startAfter"


def _link_policy(vm: VirtualMachine) -> Iterator[Link]:
    """What its policy says that becomes of it, where that is not to restart elsewhere."""
    policy = vm.spec.recovery
    why = f": {policy.reason}" if policy.reason else ""
    if policy.mode == "ignore":
        yield Link(text=f"it is out of protection, by spec.recovery.mode ignore{why}; outlive protect {vm.name}")
    elif policy.mode == "hold":
        yield Link(text=f"if its host dies, it stays down until its start is requested (recovery.mode hold){why}")


def _link_rebalancing(vm: str, records: Iterable[DecisionRecord]) -> Iterator[Link]:
    """The moves of it that were asked for because its host was full."""
    for record in records:
        if record.decision == REBALANCE.name and f'"{vm}"' in record.output:
            result = decode_as(RebalanceResult, record.output.encode())
            yield from (
                Link(at=record.at, text=f"for balance {describe_move(move)}", decision=record.name)
                for move in result.moves
                if move.vm == vm
            )


def _link_failback(vm: VirtualMachine, records: Iterable[DecisionRecord]) -> Iterator[Link]:
    """Why it was not sent to a host that it prefers when that was looked at last, while it would still go there."""
    weights = vm.spec.preferred_hosts.weights
    named = [one for one in records if one.decision == FAIL_BACK.name and f'"{vm.name}"' in one.output]
    if vm.spec.failback != "auto" or not named:
        return
    last = max(named, key=lambda one: (one.at, one.name))
    for blocked in decode_as(FailBackResult, last.output.encode()).blocked:
        if blocked.vm == vm.name and weights.get(blocked.host, 0) > weights.get(vm.host, 0):
            yield Link(at=last.at, text=str(blocked), decision=last.name)


def _is_starved(vm: VirtualMachine) -> bool:
    """Whether its host says that storage does not serve it."""
    return vm.status.reason == VmReason.STORAGE_LOST


def _link_storage_loss(vm: VirtualMachine) -> Iterator[Link]:
    if _is_starved(vm):
        yield Link(text=vm.status.message)


def _remedy_of_storage(vm: VirtualMachine) -> str:
    return STORAGE_REMEDY if _is_starved(vm) else ""


async def _list_broken_rules(store: Store, vm: VirtualMachine) -> list[Reason]:
    """The rules, hard and soft, that it goes against where it is to run; others on hosts that are lost do not count."""
    host = await read(store, Hypervisor, vm.host) if vm.host and is_to_run(vm) else None
    if host is None:
        return []
    demands, peers = demands_of(vm), Peers()
    if demands.rules:
        lost = {one.name async for one in list_all(store, Hypervisor) if one.status.lost}
        async for one in list_all(store, VirtualMachine):
            if shared := [rule for rule in one.spec.affinity_rules if rule in demands.rules]:
                peers.put(one.name, shared, one.involved_hosts() - lost)
    return find_objections(demands, host.name, peers, facts_of(host))


def _link_broken_rules(rules: Iterable[Reason]) -> Iterator[Link]:
    return (Link(text=f"it runs against a rule: {render(one).text}") for one in rules)


async def _remedy_of_rules(store: Store, vm: VirtualMachine, broken: list[Reason]) -> str:
    """The move that helps one that runs against rules, or that is held because of those of its affinity group."""
    recovery = vm.status.recovery
    held = recovery is not None and is_waiting(vm) and recovery.reason in CLOSED_BY_RULES
    if not broken and not held:
        return ""
    rules = [rule for rule in vm.spec.affinity_rules if rule.policy == AFFINITY]
    vms = {one.name: one async for one in list_all(store, VirtualMachine)} if rules else {}
    move = helpful_move(vm, vms, [one async for one in list_all(store, Hypervisor)]) if vms else None
    together = [one for one in vms.values() if any(rule in one.spec.affinity_rules for rule in rules)]
    there = {one.host for one in together if one.name != vm.name and one.status.holders}
    if move is not None and (broken or move[1] not in there):
        group, host = move
        return f"outlive group move {group} {host} brings all that are to be together to a host that their rules allow"
    one = f"outlive vm move {vm.name} brings it to a host that its rules allow, where one has room"
    return one if broken else ""
