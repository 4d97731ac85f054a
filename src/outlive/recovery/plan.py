"""Where each VM of dead hosts restarts: its best promised slot, else a place, else a reason why not.

Pure. Every VM gets exactly one action. All hosts that died meanwhile are planned together, so that of two VMs that
share a slot the one with another slot left takes that one: with slots that satisfy the rules, and no more failures
than slots, every VM then gets a promised slot of its own (docs/reference/failover-rules.md#eligibility). Where that
does not suffice the more important VM goes first (docs/reference/recovery.md#the-plan).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any, Final

import msgspec

from outlive.base import count_of
from outlive.failover import is_large_enough, restart_order
from outlive.failover.analysis import match_slots
from outlive.node.vm import MEBIBYTE, READY, RUN, NodeFigures, NodeMemory, sort_by_order
from outlive.placement import (
    AFFINITY,
    Peers,
    RuleVerdict,
    VmView,
    find_companions,
    function_refusal,
    judge,
    judge_together,
    storage_refusal,
)
from outlive.recovery.model import (
    ActionKind,
    AffectedVm,
    Free,
    HolderState,
    HostHealth,
    HostState,
    Reclaim,
    RecoveryAction,
    RecoveryPlan,
    RecoveryView,
    Release,
    SlotState,
    claim_is_over,
)
from outlive.recovery.states import PROTOCOL_DECISIONS
from outlive.recovery.without_slot import FENCE_RECOVER, LostVm, RecoverConfig, RecoverInput, recover
from outlive.resources import VmState, first_lost
from outlive.resources.reasons import (
    HoldReason,
    PlaceReason,
    PlanReason,
    Reason,
    SlotReason,
    Value,
    make_reason,
    render,
)
from outlive.runtime import Decision


def order_restarts(vms: Iterable[AffectedVm]) -> list[AffectedVm]:
    """In the order in which they restart: by priority, memory and id, but none before those that it starts after.

    Of those that start after each other in a circle somebody comes first.
    """
    by_id = {vm.id: vm for vm in vms}
    first = _sort_by_restart(by_id, {vm.id: vm.priority for vm in by_id.values()})
    if not any(vm.after for vm in first):
        return first
    lifted: dict[str, int] = {}
    for vm in first:  # the highest first, so that each is lifted once, and as far as anybody lifts it
        below = [vm]
        while below:
            one = below.pop()
            if one.id not in lifted:
                lifted[one.id] = vm.priority
                below += [by_id[name] for name in one.after if name in by_id]
    names = [vm.id for vm in _sort_by_restart(by_id, lifted)]
    return [by_id[name] for name in sort_by_order(names, {vm.id: vm.after for vm in first})]


def _sort_by_restart(vms: dict[str, AffectedVm], priorities: dict[str, int]) -> list[AffectedVm]:
    views = [VmView(id=vm.id, host="", memory_bytes=vm.memory_bytes) for vm in vms.values()]
    return [vms[view.id] for view in restart_order(views, priorities)]


REMATCHES: Final = 8
"""How often slots are matched again because VMs that got one exclude each other."""
NAMED: Final = 3
"""Hosts or VMs that a message names."""


def plan_recovery(view: RecoveryView) -> RecoveryPlan:
    """What is done about every VM, the most important first."""
    return _Planner(view).plan()


class _Planner:
    """One plan in the making."""

    def __init__(self, view: RecoveryView) -> None:
        self._view = view
        self._hosts = {host.name: host for host in view.hosts}
        self._vms = {vm.id: vm for vm in view.vms}
        self._free = dict(view.free)
        self._peers = Peers(view.groups)
        """Where the others of each VM's groups are, those included for whom this plan has found a place."""
        self._booked: dict[str, dict[str, str]] = {}
        """Host → virtual function → VM that this plan sends there."""
        self._targets: dict[str, str] = {}
        """VM → the host that all of its affinity group start on, where none of them is anywhere."""

    def plan(self) -> RecoveryPlan:
        """See ``plan_recovery``."""
        actions: dict[str, RecoveryAction] = {}
        homeless: list[AffectedVm] = []
        vms = order_restarts(self._view.vms)
        for vm in vms:
            action = self._decide_in_place(vm)
            if action is None and vm.stays_down:
                action = self._kept_down(vm)
            if action is None:
                homeless.append(vm)
            else:
                actions[vm.id] = action
        for vm in homeless:
            self._peers.put(vm.id, vm.rules, ())
        to_search = self._choose_for_groups(homeless)
        actions.update(self._place_into_slots([vm for vm in homeless if vm.id not in to_search]))
        without = [vm for vm in homeless if vm.id not in actions]
        for vm in without:
            actions[vm.id] = self._place_elsewhere(vm, without)
        chosen = tuple(actions[vm.id] for vm in vms)
        reclaims = list[Reclaim]()
        slots = {slot.name: slot for slot in self._view.slots}
        for vm in self._view.vms:
            slot = slots.get(vm.slot)
            under_way = vm.unfinished and actions[vm.id].kind is ActionKind.WAIT
            if under_way and slot is not None and slot.consumer is None and slot.host == vm.assigned:
                reclaims.append(Reclaim(slot=slot.name, vm=vm.id, fence=vm.fence))
        return RecoveryPlan(actions=chosen, releases=self._find_releases(actions), reclaims=tuple(reclaims))

    # VMs for which no place has to be found

    def _decide_in_place(self, vm: AffectedVm) -> RecoveryAction | None:
        """What is done about a VM that needs no other host now; ``None`` where it does."""
        host = self._find_host(vm.assigned)
        if vm.running and not (host.unattended or host.awaited):
            kind = ActionKind.DONE if vm.unfinished else ActionKind.WAIT
            return _build_action(vm, kind, PlanReason.RUNNING, host=vm.assigned)
        not_fenced = [holder for holder in vm.holders if not holder.fenced]
        ignored = vm.mode == "ignore" and not vm.asked
        if not_fenced:
            return self._wait_for_holders(vm, not_fenced, ignored=ignored)
        if ignored or not vm.wanted:
            drops = (vm.holders or vm.unfinished or vm.refusal) and not self._view.paused
            kind = ActionKind.DROP if drops else ActionKind.WAIT
            return _build_action(vm, kind, PlanReason.IGNORED if ignored and vm.wanted else PlanReason.NOT_WANTED)
        if self._view.paused:
            hosts, incarnation = self._view.waits_for, self._view.incarnation
            return _build_action(
                vm,
                ActionKind.HOLD,
                HoldReason.STORE_RESTORED,
                hosts=hosts,
                count=count_of(len(hosts), "host"),
                incarnation=incarnation,
            )
        if vm.brings_down_hosts:
            return _build_action(vm, ActionKind.HOLD, HoldReason.BRINGS_DOWN_HOSTS, hosts=vm.failed_hosts, name=vm.id)
        begun = vm.holders or (vm.unfinished and not vm.waits_for_host)
        if begun and vm.stays_down:
            return self._kept_down(vm)
        action = self._leave_to_host(vm)
        if self._view.disarmed and (action is None or action.kind is ActionKind.PLACE):
            return _build_action(vm, ActionKind.HOLD, HoldReason.CLUSTER_DISARMED, mode=self._view.disarmed)
        return action

    def _kept_down(self, vm: AffectedVm) -> RecoveryAction:
        host = next((one.host for one in vm.holders), vm.assigned)
        return _build_action(vm, ActionKind.HOLD, HoldReason.KEPT_DOWN, host=host, name=vm.id)

    def _wait_for_holders(self, vm: AffectedVm, not_fenced: Sequence[HolderState], *, ignored: bool) -> RecoveryAction:
        """Somebody may still run it."""
        for holder in not_fenced:
            if not holder.known:  # an ignored VM needs somebody as well: no host comes back that knows more
                return _build_action(
                    vm, ActionKind.HOLD, HoldReason.MEMBERSHIP_MISSING, host=holder.host, uid=holder.uid
                )
            host = self._find_host(holder.host)
            if ignored:
                continue
            if self._view.disarmed and host.health is HostHealth.REVOKED:
                return _build_action(vm, ActionKind.HOLD, HoldReason.CLUSTER_DISARMED, mode=self._view.disarmed)
            if host.unconfirmed:
                return _build_action(vm, ActionKind.HOLD, HoldReason.FENCE_UNCONFIRMED, host=host.name)
            if host.awaited:
                return _build_action(vm, ActionKind.HOLD, HoldReason.HOST_AWAITED, host=host.name)
            if host.unattended:
                return _build_action(vm, ActionKind.HOLD, HoldReason.UNATTENDED, host=host.name)
        host = self._find_host(not_fenced[0].host)
        why = PlanReason.FENCE_UNDER_WAY if host.health is HostHealth.REVOKED else PlanReason.HELD_BY_HOST
        return _build_action(vm, ActionKind.WAIT, why, host=host.name)

    def _leave_to_host(self, vm: AffectedVm) -> RecoveryAction | None:
        """Whether the host that it is assigned to is to start it: it lives, has not refused, and has time left.

        A VM whose source died while it was moved goes on to where it was bound for, in the room that is kept for it
        there: no slot was promised for that.
        """
        host = self._find_host(vm.assigned)
        if vm.refusal:
            return None
        bound = host.starts if all(one.host != vm.assigned for one in vm.holders) else host.schedulable
        bound = bound and self._lost_place(vm, host.name) is None
        if vm.arriving and vm.holders and bound:
            return _build_action(vm, ActionKind.PLACE, PlanReason.MOVED_THERE, host=host.name)
        if vm.blocked and bound:
            code = HoldReason.CANNOT_START if vm.blocked_by_itself else HoldReason.DISK_LOCKED
            return _build_action(vm, ActionKind.HOLD, code, host=host.name, why=vm.blocked)
        limit_s = self._view.start_limit_s
        if vm.waits_for and bound and vm.waited_s < limit_s + vm.wait_limit_s:
            return _build_action(vm, ActionKind.WAIT, PlanReason.WAITS_FOR_OTHERS, host=host.name, why=vm.waits_for)
        if bound and vm.waited_s < limit_s:
            return _build_action(vm, ActionKind.WAIT, PlanReason.STARTING, host=host.name)
        if vm.holders or (vm.unfinished and not vm.waits_for_host):
            return None
        if host.awaited:
            return _build_action(vm, ActionKind.HOLD, HoldReason.HOST_AWAITED, host=host.name)
        if host.health is HostHealth.RELEASED:
            return _build_action(vm, ActionKind.HOLD, HoldReason.HOST_STOPPED, host=host.name)
        if host.lost:
            return None
        if host.health is HostHealth.UNKNOWN and vm.waited_s >= limit_s:
            return _build_action(vm, ActionKind.HOLD, HoldReason.HOST_NOT_JOINED, host=host.name)
        if host.unattended:
            return _build_action(vm, ActionKind.HOLD, HoldReason.UNATTENDED, host=host.name)
        return _build_action(vm, ActionKind.WAIT, PlanReason.LEFT_TO_HOST, host=host.name)

    # VMs that need another host

    def _choose_for_groups(self, homeless: Sequence[AffectedVm]) -> set[str]:
        """Choose one host for each affinity group of which nobody is anywhere: one where all of it may be.

        Of groups for which slots alone do not do, placement is asked first; these VMs are returned. Where no host takes
        all of a group, each of its VMs is planned for by itself.
        """
        to_search: set[str] = set()
        grouped: set[str] = set()
        for vm in homeless:
            group = find_companions(vm, homeless) if vm.id not in grouped else ()
            grouped.update(one.id for one in group)
            if len(group) < 2 or any(self._is_bound(one) for one in group):
                continue
            target = self._host_for_all(group)
            if target is not None:
                self._targets.update((one.id, target) for one in group)
            elif not self._view.searched and any(one.offers is None for one in group):
                to_search.update(one.id for one in group)
        return to_search

    def _is_bound(self, vm: AffectedVm) -> bool:
        """Whether one of those that it is to be with is somewhere, so that its rules say where it goes; or whether it
        is not placed at all."""
        rules = [rule for rule in vm.rules if rule.policy == AFFINITY]
        somewhere = any(next(self._peers.iter_hosts(rule, vm.id), None) is not None for rule in rules)
        return somewhere or self._is_at_its_limit(vm)

    def _host_for_all(self, group: Sequence[AffectedVm]) -> str | None:
        """The host that all of the group may start on: in most of their slots, and beside these where it has room for
        the rest."""
        offered = {host for vm in group for host in vm.offers or ()}
        found: list[tuple[int, int, int, int, int, str]] = []
        for host in sorted({slot.host for slot in self._usable_slots()} | offered):
            verdicts = [self._judge(vm, host) for vm in group]
            closed = judge_together(group, host, self._peers) is not None or not all(one.allowed for one in verdicts)
            if closed or not self._find_host(host).schedulable:
                continue
            slots = [slot for slot in self._usable_slots() if slot.host == host]
            choices = [[at for at, slot in enumerate(slots) if _may_take(vm, slot)] for vm in group]
            without = [vm for vm, at in zip(group, match_slots(choices), strict=True) if at is None]
            allowed = all(host in (vm.offers or ()) and host not in vm.avoid for vm in without)
            if not allowed or (without and not is_large_enough(_sum_of(without), self._free.get(host, Free()))):
                continue
            claimed = sum(slots[at].consumer is not None for mine in choices for at in mine)
            soft, weight = (sum(merits) for merits in zip(*(one.merit for one in verdicts), strict=True))
            ranked = group[0].offers or ()
            rank = ranked.index(host) if host in ranked else len(ranked)
            found.append((-claimed, len(without), -soft, -weight, rank, host))
        return min(found)[-1] if found else None

    def _usable_slots(self) -> list[SlotState]:
        return [slot for slot in self._view.slots if slot.ready and self._find_host(slot.host).schedulable]

    def _place_into_slots(self, homeless: Sequence[AffectedVm]) -> dict[str, RecoveryAction]:
        """A slot for as many as possible, the most important first; each its own if it has one."""
        usable = self._usable_slots()
        numbers = {slot.name: number for number, slot in enumerate(usable)}
        ids = {vm.id for vm in homeless}
        sharers = {slot.name: sum(1 for member in slot.members if member in ids) for slot in usable}
        hosts = Counter((slot.host, member) for slot in usable for member in slot.members if member in ids)
        choices: list[list[int]] = []
        for vm in homeless:
            able = [(slot, self._judge(vm, slot.host)) for slot in usable if _may_take(vm, slot)]
            mine = [(slot, verdict) for slot, verdict in able if verdict.allowed and self._is_target(vm, slot.host)]
            together = _tied_vms(vm, homeless)
            mine.sort(
                key=lambda one: (
                    one[0].consumer is None,
                    -sum(1 for other in together if (one[0].host, other) in hosts),
                    *(-merit for merit in one[1].merit),
                    sharers[one[0].name],
                    len(one[0].members),
                    one[0].name,
                )
            )
            choices.append([numbers[slot.name] for slot, _ in mine])
        actions: dict[str, RecoveryAction] = {}
        for vm, number in zip(homeless, self._match_slots(homeless, choices, usable), strict=True):
            if number is not None:
                slot = usable[number]
                actions[vm.id] = self._use_slot(slot, vm, ids)
        return actions

    def _match_slots(
        self, vms: Sequence[AffectedVm], choices: list[list[int]], usable: Sequence[SlotState]
    ) -> list[int | None]:
        """One slot for as many as possible, so that no hard rule is broken between those that get one.

        Where two of them exclude each other, the more important one has its slot and the other is matched without
        that one; a VM that is left over in the end takes any free slot of its own that is allowed.
        """
        left, found = choices, match_slots(choices)
        for _ in range(REMATCHES):
            clashing = self._take_places(vms, found, usable)
            if not clashing:
                break
            left = [[one for one in mine if (at, one) not in clashing] for at, mine in enumerate(left)]
            found = match_slots(left)
        for at, _ in self._take_places(vms, found, usable):
            found[at] = None
        taken = {number for number in found if number is not None}
        for at, vm in enumerate(vms) if left is not choices else ():
            for number in choices[at] if found[at] is None else ():
                if number not in taken and self._judge(vm, usable[number].host).allowed:
                    found[at] = number
                    taken.add(number)
                    self._place(vm, usable[number].host)
                    break
        return found

    def _take_places(
        self, vms: Sequence[AffectedVm], found: Sequence[int | None], usable: Sequence[SlotState]
    ) -> set[tuple[int, int]]:
        """Let everybody be in the slot that was found for it, the most important first; who may not, beside those
        before it, is nowhere."""
        clashing: set[tuple[int, int]] = set()
        for vm in vms:
            self._place(vm, "")
        for at, (vm, number) in enumerate(zip(vms, found, strict=True)):
            if number is None or not (vm.rules or vm.functions):
                continue
            if self._judge(vm, usable[number].host).allowed:
                self._place(vm, usable[number].host)
            else:
                clashing.add((at, number))
        return clashing

    def _is_target(self, vm: AffectedVm, host: str) -> bool:
        """Whether nothing else was chosen for its group."""
        return self._targets.get(vm.id, host) == host

    def _judge(self, vm: AffectedVm, host: str) -> RuleVerdict:
        place = self._lost_place(vm, host)
        if place is not None:
            return RuleVerdict(refusal=storage_refusal(vm.id, host, place))
        if vm.functions:
            booked = self._booked.get(host, {})  # who is sent there by this plan
            functions = tuple(
                msgspec.structs.replace(one, owner=one.owner or booked.get(one.name, ""))
                for one in self._find_host(host).functions
            )
            lacks = function_refusal(vm.id, host, vm.functions, functions)
            if lacks is not None:
                return RuleVerdict(refusal=lacks)
        return judge(vm, host, self._peers)

    def _place(self, vm: AffectedVm, host: str) -> None:
        """The plan sends the VM to this host and to no other; empty: to none."""
        self._peers.put(vm.id, vm.rules, (host,) if host else ())
        if not vm.functions:
            return
        for functions in self._booked.values():
            for name in [name for name, owner in functions.items() if owner == vm.id]:
                del functions[name]
        for need in vm.functions if host else ():
            for one in self._find_host(host).functions:
                if need.is_met_by(one.name, one.pci):
                    self._booked.setdefault(host, {})[one.name] = vm.id

    def _lost_place(self, vm: AffectedVm, host: str) -> str | None:
        """The place of one of its disks that the host does not reach."""
        return first_lost(vm.disks, self._find_host(host).lost_places)

    def _use_slot(self, slot: SlotState, vm: AffectedVm, homeless: Set[str]) -> RecoveryAction:
        """Whether the slot was promised to it, and to it alone, as ``survive`` would have said."""
        there = slot.recorded.get(vm.id)
        rivals = tuple(one for one in slot.members if one != vm.id and (one in homeless or self._is_affected(one)))
        code, also = PlanReason.PROMISED, dict[str, Value]()
        if there is not None and not vm.unfinished and vm.holders and all(one.host != there for one in vm.holders):
            code, also = PlanReason.LISTED_ELSEWHERE, {"there": there}
        elif rivals:
            code, also = PlanReason.CONTESTED, {"rivals": rivals}
        found = _build_action(vm, ActionKind.SLOT, code, host=slot.host, slot=slot.name, **also)
        return msgspec.structs.replace(found, against=self._judge(vm, slot.host).against)

    def _is_affected(self, name: str) -> bool:
        """Whether the VM has lost its host, or is about to: it may need its slots as well."""
        vm = self._vms.get(name)
        return vm is not None and vm.wanted and self._find_host(vm.assigned).lost

    def _place_elsewhere(self, vm: AffectedVm, homeless: Sequence[AffectedVm]) -> RecoveryAction:
        """No slot is left: any host with room that its rules allow; ``homeless``: who has none either."""
        refused = self._refusing_hosts(vm)
        why = f" ({vm.refusal})" if vm.refusal else ""
        if self._is_at_its_limit(vm):
            if vm.max_relocations == 0 and self._is_forgiven(vm):
                return self._ask_again(vm)
            limit, code = vm.max_relocations, HoldReason.RELOCATION_LIMIT
            code = code if limit else HoldReason.NOT_ELSEWHERE
            return _build_action(vm, ActionKind.HOLD, code, hosts=refused, why=why, limit=limit, name=vm.id)
        if vm.offers is None:
            return _build_action(vm, ActionKind.SEARCH, PlanReason.NO_SLOT, slots=self._explain_no_slot(vm))
        target = self._choose_host(vm, vm.offers, homeless)
        if target is not None:
            against = self._judge(vm, target).against
            self._place(vm, target)
            found = _build_action(vm, ActionKind.PLACE, PlanReason.PLACED, host=target, slots=self._explain_no_slot(vm))
            return msgspec.structs.replace(found, against=against)
        if self._is_forgiven(vm):
            return self._ask_again(vm)
        if refused:
            return _build_action(vm, ActionKind.HOLD, HoldReason.REFUSED, hosts=refused, why=why)
        judged = [self._judge(vm, name).refusal for name in self._hosts_with_room(vm, vm.offers)]
        closed = [one for one in judged if one is not None]
        starved = [one for one in closed if one.code == PlaceReason.STORAGE_UNREACHED]
        if closed:
            why = render((starved or closed)[0]).text
            code = HoldReason.STORAGE_UNREACHED if starved else HoldReason.RULED_OUT
            return _build_action(vm, ActionKind.HOLD, code, slots=self._explain_no_slot(vm), why=why)
        return _build_action(vm, ActionKind.HOLD, HoldReason.NO_ROOM, slots=self._explain_no_slot(vm), name=vm.id)

    def _refusing_hosts(self, vm: AffectedVm) -> tuple[str, ...]:
        """The hosts, dead ones aside, that did not start it; with ``maxRelocations`` 0 also those that are asked
        again."""
        hosts = vm.avoid if vm.max_relocations else vm.tried
        return tuple(name for name in hosts if not self._find_host(name).lost)

    def _is_at_its_limit(self, vm: AffectedVm) -> bool:
        """Whether hosts did not start it, and its policy lets it go to no further one."""
        return vm.relocations >= vm.max_relocations and self._refusing_hosts(vm) != ()

    def _is_forgiven(self, vm: AffectedVm) -> bool:
        """Whether the host that it is assigned to, which keeps its room, refused it long enough ago."""
        may_start = self._find_host(vm.assigned).schedulable and self._judge(vm, vm.assigned).allowed
        refused = vm.refusal != "" or vm.assigned in vm.tried
        return refused and vm.assigned not in vm.avoid and may_start

    def _ask_again(self, vm: AffectedVm) -> RecoveryAction:
        self._place(vm, vm.assigned)
        return _build_action(vm, ActionKind.PLACE, PlanReason.ASKED_AGAIN, host=vm.assigned)

    def _hosts_with_room(self, vm: AffectedVm, offers: Sequence[str]) -> list[str]:
        """Of the hosts that placement allows, those that have room for it beside everything that is planned so far, and
        did not refuse it."""
        able = [name for name in offers if name not in vm.avoid and self._find_host(name).schedulable]
        return [name for name in able if is_large_enough(vm, self._free.get(name, Free()))]

    def _choose_host(self, vm: AffectedVm, offers: Sequence[str], homeless: Sequence[AffectedVm]) -> str | None:
        """Of the hosts that placement and its rules allow and that have room, the one that the VM's selector prefers.

        Hosts that suit its soft rules and preferences better come first, and before all those with room for the others
        that are to be together with it. The choice is booked, so that the next VM finds less room.
        """
        verdicts = {name: self._judge(vm, name) for name in self._hosts_with_room(vm, offers)}
        allowed = [name for name, verdict in verdicts.items() if verdict.allowed and self._is_target(vm, name)]
        if vm.rules and (together := set(_tied_vms(vm, homeless))):
            need = _sum_of([vm, *(one for one in homeless if one.id in together)])
            allowed = [name for name in allowed if is_large_enough(need, self._free.get(name, Free()))] or allowed
        best = max((verdicts[name].merit for name in allowed), default=(0, 0))
        allowed = [name for name in allowed if verdicts[name].merit == best]
        given = RecoverInput(
            node=vm.assigned,
            fence_ok=True,
            vms=(
                LostVm(
                    uuid=vm.id,
                    state=VmState.START,
                    node=vm.assigned,
                    memory=vm.memory_bytes / MEBIBYTE,
                    vcpus=vm.cpu_milli / 1000,
                    node_limit=vm.host_limit or None,
                    selector=vm.selector or None,
                ),
            ),
            nodes=tuple(map(self._figures_of, allowed)),
            config=RecoverConfig(default_selector=self._view.default_selector or None, require_fit=True),
        )
        node = recover(given).vms[vm.id].node
        if not isinstance(node, str):
            return None
        left = self._free.get(node, Free())
        self._free[node] = Free(
            cpu_milli=left.cpu_milli - vm.cpu_milli, memory_bytes=left.memory_bytes - vm.memory_bytes
        )
        return node

    def _figures_of(self, host: str) -> NodeFigures:
        """The host's room is what it has left after VMs, slots and plans, whatever a selector reads it as."""
        known = self._find_host(host)
        return NodeFigures(
            name=host,
            daemon_state=RUN,
            domain_state=READY,
            memory=NodeMemory(free=self._free.get(host, Free()).memory_bytes / MEBIBYTE),
            vcpu_allocated=known.vcpu_milli / 1000,
            domains_count=known.vms,
        )

    def _explain_no_slot(self, vm: AffectedVm) -> str:
        mine = [slot for slot in self._view.slots if vm.id in slot.members]
        reasons = [self._explain_slot(vm, slot) for slot in mine[:NAMED]] or [make_reason(SlotReason.NOT_PROMISED)]
        return "; ".join(render(one).text for one in reasons)

    def _explain_slot(self, vm: AffectedVm, slot: SlotState) -> Reason:
        """Why it does not go into this slot of its own."""
        host, consumer = self._find_host(slot.host), slot.consumer
        at: dict[str, Value] = {"slot": slot.name, "host": slot.host}
        if host.health is not HostHealth.LIVE:
            return make_reason(SlotReason.HOST_NOT_LIVE, **at, health=host.health.value)
        if host.refuses:
            return make_reason(SlotReason.HOST_REFUSES, **at, why=host.refuses)
        if consumer is not None and consumer.vm != vm.id:
            return make_reason(SlotReason.TAKEN, **at, by=consumer.vm)
        for wrong, code in (
            (slot.host in vm.avoid, SlotReason.NOT_STARTED),
            (not slot.ready, SlotReason.NOT_READY),
            (not is_large_enough(vm, slot), SlotReason.TOO_SMALL),
        ):
            if wrong:
                return make_reason(code, **at)
        closed = self._judge(vm, slot.host).refusal
        if closed is not None:
            return make_reason(SlotReason.RULED_OUT, **at, why=render(closed).text)
        return make_reason(SlotReason.FOR_ANOTHER, **at)

    # Slots to be put right

    def _find_releases(self, actions: dict[str, RecoveryAction]) -> tuple[Release, ...]:
        """Slots whose consumer can never come in, or is somewhere else.

        A claim is withdrawn only where the VM's own document already leads elsewhere: a process that would still act on
        the claim then loses its compare-and-swap on the VM.
        """
        found: list[Release] = []
        for slot in self._view.slots:
            consumer = slot.consumer
            if consumer is None:
                continue
            vm = self._vms.get(consumer.vm)
            if vm is None:
                if consumer.vm in self._view.gone:
                    why = make_reason(SlotReason.VM_GONE, vm=consumer.vm)
                    found.append(Release(slot=slot.name, vm=consumer.vm, reason=why))
                continue
            code = claim_is_over(vm, slot.name, slot.host)
            if code is not None and actions[vm.id].slot != slot.name:
                why = make_reason(code, vm=vm.id, host=vm.assigned or "no host")
                found.append(Release(slot=slot.name, vm=vm.id, reason=why))
        return tuple(found)

    def _find_host(self, name: str) -> HostState:
        return self._hosts.get(name) or HostState(name=name, health=HostHealth.UNKNOWN)


def _may_take(vm: AffectedVm, slot: SlotState) -> bool:
    free = slot.consumer is None or (slot.consumer.vm, slot.consumer.fence) == (vm.id, vm.fence)
    return vm.id in slot.members and free and slot.host not in vm.avoid and is_large_enough(vm, slot)


def _sum_of(vms: Sequence[AffectedVm]) -> Free:
    """What these VMs need together."""
    return Free(cpu_milli=sum(vm.cpu_milli for vm in vms), memory_bytes=sum(vm.memory_bytes for vm in vms))


def _tied_vms(vm: AffectedVm, vms: Sequence[AffectedVm]) -> tuple[str, ...]:
    """Others of these that are to be on one host with the VM."""
    rules = [rule for rule in vm.rules if rule.policy == AFFINITY]
    if not rules:
        return ()
    return tuple(one.id for one in vms if one.id != vm.id and any(rule in one.rules for rule in rules))


def _build_action(
    vm: AffectedVm,
    kind: ActionKind,
    code: HoldReason | PlanReason,
    *,
    host: str = "",
    slot: str = "",
    **fields: Value,
) -> RecoveryAction:
    also: dict[str, Value] = {"host": host or "no host"}
    also |= {"slot": slot} if slot else {}
    return RecoveryAction(
        vm=vm.id, kind=kind, fence=vm.fence, host=host, slot=slot, reason=make_reason(code, **also, **fields)
    )


def _is_only_waiting(plan: RecoveryPlan) -> bool:
    return all(action.kind is ActionKind.WAIT for action in plan.actions) and not plan.releases and not plan.reclaims


RECOVERY_PLAN: Final = Decision(
    "recovery.plan",
    plan_recovery,
    RecoveryView,
    RecoveryPlan,
    "Where each virtual machine of dead hosts restarts, or why it is held",
    _is_only_waiting,
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (RECOVERY_PLAN, FENCE_RECOVER, *PROTOCOL_DECISIONS)
"""All of them."""
