"""Hard affinity rules where a virtual machine comes to this host: a move brings it, or it is to start here.

The process that assigned it looked before. This is a fresh look after that was written, so that of two that come at
once at least one sees the other. Of a group that starts on several hosts at once the first by name goes first, once it
is known that no other one has begun. A virtual machine that has been let in stays, also while it starts again in place.
Nothing is read for a virtual machine without such rules, or that may not start yet for another reason; for an
anti-affinity rule those of this host are listed, and for an affinity rule all, where no other of its group is here.
Soft rules, zones and limits of hosts are not looked at: nothing but where others are changes between a choice and an
arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from outlive.base import natural_key
from outlive.node.migration.record import P, abort
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.selection import MEBIBYTE, is_working, survey_hosts
from outlive.node.vm.start import SOON_S, Ruling, start, start_turn
from outlive.node.vm.states import active_move, entries_of_host, is_to_run, rejected_by
from outlive.placement import (
    AFFINITY,
    ANTI_AFFINITY,
    Peers,
    VmConstraints,
    demands_of,
    find_companions,
    judge,
    judge_together,
)
from outlive.resources import HOST_LABEL, AffinityRule, VirtualMachine
from outlive.resources.reasons import MigrationReason, make_reason, render
from outlive.store import Selector, list_all

_INCOMING: Final = "incoming"
YIELD_S: Final = 5.0
"""How long the first by name lets others go first that are to start elsewhere: the look of one that does not know of it
yet has ended in an entry by then."""


def _rules_of_policy(vm: VirtualMachine, policy: str) -> tuple[AffinityRule, ...]:
    return tuple(rule for rule in vm.spec.affinity_rules if rule.policy == policy)


def _find_conflict(vm: VirtualMachine, other: VirtualMachine, host: str) -> str | None:
    """How it is against a rule that one comes to the host where the other is, or goes; ``None``: it is not."""
    peers, apart = Peers(), _rules_of_policy(vm, ANTI_AFFINITY)
    if other.host == host:
        peers.put(other.name, [rule for rule in other.spec.affinity_rules if rule in apart], (host,))
    return _find_refusal(vm, apart, host, peers)


def _find_refusal(vm: VirtualMachine, rules: tuple[AffinityRule, ...], host: str, peers: Peers) -> str | None:
    refusal = judge(VmConstraints(id=vm.name, rules=rules), host, peers).refusal
    return None if refusal is None else render(refusal).text


async def _local_vms(node: VmContext) -> Mapping[str, VirtualMachine]:
    """Those that are assigned to it, or were a moment ago, and those that run here and are assigned elsewhere."""
    labelled = Selector.from_labels({HOST_LABEL: node.host})
    found = {one.name: one async for one in list_all(node.store, VirtualMachine, selector=labelled)}
    for name in node.domains.list_names():
        leaving = await node.read(name) if name not in found else None
        if leaving is not None:
            found[name] = leaving
    return found


# One that a move brings


async def refuses_move(node: VmContext, vm: VirtualMachine) -> str:
    """Why it may not come beside another that it is to be kept apart from; empty where it may.

    Of two that were not let in yet, the first by name calls the move of the other off before it goes on: in the record
    by which that one would be let in, since an earlier look may not have seen this one.
    """
    if not _rules_of_policy(vm, ANTI_AFFINITY):
        return ""
    for one in (await _local_vms(node)).values():
        why = _find_conflict(vm, one, node.host)
        if why is None or one.name == vm.name:
            continue
        move, back = active_move(one), _find_conflict(one, vm, node.host)
        if (
            move is not None
            and back is not None
            and one.name > vm.name
            and (move.target, move.phase) == (node.host, P.REQUESTED)
            and all(entry.hypervisor != node.host for entry in one.status.holders)
        ):
            await abort(
                node, one.name, move, make_reason(MigrationReason.AGAINST_RULE, why=back), frozenset({P.REQUESTED})
            )
            now = await node.read(one.name)
            if now is None or _find_conflict(vm, now, node.host) is None:
                continue
        return why
    return ""


# One that is to start here


async def start_by_rules(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> float | None:
    """One try to start it in its turn, if its rules allow that here; when to look again."""
    turn = await start_turn(node, vm, memory)
    if turn.wait_s is not None:
        return turn.wait_s
    with _register_arrival(node, vm) as alone:
        if not alone:
            return SOON_S
        return await start(node, vm, memory, turn, lambda now: _judge_start(node, now, memory))


@contextmanager
def _register_arrival(node: VmContext, vm: VirtualMachine) -> Iterator[bool]:
    """From the look whether it may start to its own entry. Whether no other that it is to be kept apart from is between
    these two as well; else it comes after that one."""
    apart = _rules_of_policy(vm, ANTI_AFFINITY)
    alone = not any(rule in apart for rules in node.arriving.values() for rule in rules)
    if alone:
        node.arriving[vm.name] = apart
    try:
        yield alone
    finally:
        if alone:
            del node.arriving[vm.name]


async def _judge_start(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> Ruling:
    """Whether it may start here. Errors of the store.

    Moves to this host of those that it is to be kept apart from are called off, while that goes. Then it must not start
    beside one that runs here, or was let in to; nor apart from its group where that is on other hosts that work. What
    nobody wants to run, or what its own host has rejected, is nowhere. A VM that held this host before may start again.
    """
    apart, together = _rules_of_policy(vm, ANTI_AFFINITY), _rules_of_policy(vm, AFFINITY)
    if not (apart or together) or entries_of_host(vm, node.lease.me):
        return Ruling()
    peers, with_it = Peers(), set[AffinityRule]()
    for one in (await _local_vms(node)).values():
        if one.name == vm.name:
            continue
        if any(entry.hypervisor == node.host and entry.role != _INCOMING for entry in one.status.holders):
            with_it.update(rule for rule in together if rule in one.spec.affinity_rules)
        now: VirtualMachine | None = one
        move, conflict = active_move(one), _find_conflict(one, vm, node.host)
        if move is not None and move.target == node.host and conflict is not None:
            await abort(node, one.name, move, make_reason(MigrationReason.AGAINST_RULE, why=conflict))
            now = await node.read(one.name)
        if now is None:
            continue
        comes = now.host == node.host and active_move(now) is not None
        if comes or any(entry.hypervisor == node.host and entry.role != _INCOMING for entry in now.status.holders):
            peers.put(one.name, [rule for rule in apart if rule in now.spec.affinity_rules], (node.host,))
    why = _find_refusal(vm, apart, node.host, peers)
    if why is not None:
        return Ruling(why)
    return await _judge_place_beside_group(node, vm, tuple(rule for rule in together if rule not in with_it), memory)


async def _judge_place_beside_group(
    node: VmContext, vm: VirtualMachine, rules: tuple[AffinityRule, ...], memory: VmMemory
) -> Ruling:
    """Whether it may start where its group is to be; ``rules``: its affinity rules of which nobody has an entry here.

    Where others of it have an entry on hosts that work, it goes there. Else all of them go where the first by name is
    assigned. The first waits while others are elsewhere, until each host that did not know of it yet has an entry; and
    it does not start on a host that is closed to one of its group while another host may have all of them.
    """
    if not rules:
        return Ruling()
    everyone = [one async for one in list_all(node.store, VirtualMachine) if one.spec.affinity_rules]
    begun, others, known = Peers(), dict[str, tuple[list[AffinityRule], set[str]]](), dict[str, bool]()
    for one in everyone:
        shared = [rule for rule in rules if rule in one.spec.affinity_rules]
        if not shared or one.name == vm.name or not _is_placed(one):
            continue
        for host in one.involved_hosts() - known.keys():
            known[host] = await is_working(node.store, host)
        at = {node.host} if one.status.home == node.host else {host for host in one.involved_hosts() if known[host]}
        if one.status.holders:
            begun.put(one.name, shared, sorted(at, key=natural_key))
        elif at:
            others[one.name] = (shared, at)
    if why := _find_refusal(vm, rules, node.host, begun):
        return Ruling(why)
    if any(begun.members_on(rule, vm.name, node.host) for rule in rules):
        return Ruling()
    if why := await _explain_closed_to_group(node, vm, everyone, memory):
        return Ruling(why)
    first = min(others, default=vm.name)
    if first < vm.name:
        shared, at = others[first]
        leader = Peers()
        leader.put(first, shared, sorted(at, key=natural_key))
        if why := _find_refusal(vm, rules, node.host, leader):
            return Ruling(why)
    if all(node.host in at for _, at in others.values()):
        return Ruling()
    now_s = node.clock.monotonic()
    if now_s > memory.yields_until_s + YIELD_S:
        memory.yields_until_s = now_s + YIELD_S
    return Ruling(wait_s=max(0.0, memory.yields_until_s - now_s))


async def _explain_closed_to_group(
    node: VmContext, vm: VirtualMachine, everyone: Sequence[VirtualMachine], memory: VmMemory
) -> str:
    """Why this host is not for all of its group, which runs nowhere, while another is; empty: it is, or no other is.

    Where recovery sends it back here all the same it starts: the others then are told which rule is in their way. So
    does one that nobody would start elsewhere, by its policy.
    """
    demands = [demands_of(one) for one in everyone if one.name == vm.name or is_to_run(one)]
    group = find_companions(demands_of(vm), demands)
    if len(group) < 2 or memory.left_to_group or vm.spec.recovery.mode in ("hold", "ignore"):
        return ""
    names, peers = {one.id for one in group}, Peers()
    for one in everyone:
        if one.name not in names and _is_placed(one):
            peers.put(one.name, one.spec.affinity_rules, one.involved_hosts())
    hosts = await survey_hosts(node.store)
    closed = judge_together(group, node.host, peers, hosts.facts.get(node.host))
    if closed is None:
        return ""
    memory_mib = sum(one.spec.resources.memory_bytes for one in everyone if one.name in names) / MEBIBYTE
    memory.left_to_group = any(
        hosts.facts[one.name].works  # also one that has not joined yet: after a power failure hosts come one by one
        and one.memory.free >= memory_mib
        and judge_together(group, one.name, peers, hosts.facts[one.name]) is None
        for one in hosts.nodes
    )
    return render(closed).text if memory.left_to_group else ""


def _is_placed(vm: VirtualMachine) -> bool:
    return bool(vm.status.holders) or (is_to_run(vm) and not rejected_by(vm, vm.host))
