"""Where each VM of dead hosts restarts: its best promised slot, else a place, else a reason why not.

Pure. Every VM gets exactly one action. All hosts that died meanwhile are planned together, so that of two VMs that
share a slot the one with another slot left takes that one: with slots that satisfy the rules, and no more failures
than slots, every VM then gets a promised slot of its own (docs/reference/failover.md#eligibility). Where that does
not suffice the more important VM goes first (docs/reference/recovery.md#the-plan).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from outlive.failover.analysis.survival import matched
from outlive.failover.model import VmView
from outlive.failover.protection import restart_order
from outlive.failover.rules import fits, may_run_on
from outlive.node.fencing.legacy_recovery import LostVm, RecoverConfig, RecoverInput, recover
from outlive.node.vm.selection import READY, RUN, NodeFigures, NodeMemory
from outlive.node.vm.start_order import in_order
from outlive.recovery.model import (
    CONTESTED,
    HOST_NOT_JOINED,
    HOST_STOPPED,
    MOVED_THERE,
    PROMISED,
    Action,
    ActionKind,
    Free,
    HolderState,
    HostHealth,
    HostState,
    Reclaim,
    RecoveryPlan,
    RecoveryView,
    Release,
    SlotState,
    VmState,
)
from outlive.recovery.states import PROTOCOL_DECISIONS
from outlive.runtime.decisions import Decision


def ordered(vms: Iterable[VmState]) -> list[VmState]:
    """In the order in which they restart: by priority, memory and id, but none before those that it starts after.

    Of those that start after each other in a circle somebody comes first.
    """
    by_id = {vm.id: vm for vm in vms}
    first = _restarted(by_id, {vm.id: vm.priority for vm in by_id.values()})
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
    names = [vm.id for vm in _restarted(by_id, lifted)]
    return [by_id[name] for name in in_order(names, {vm.id: vm.after for vm in first})]


def _restarted(vms: dict[str, VmState], priorities: dict[str, int]) -> list[VmState]:
    views = [VmView(id=vm.id, host="", memory_bytes=vm.memory_bytes) for vm in vms.values()]
    return [vms[view.id] for view in restart_order(views, priorities)]


NAMED: Final = 3
"""Hosts or VMs that a message names."""
MEBIBYTE: Final = 2**20
RESTARTED_STATE: Final = "start"
"""State of a VM that should run."""


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

    def plan(self) -> RecoveryPlan:
        """See ``plan_recovery``."""
        actions: dict[str, Action] = {}
        homeless: list[VmState] = []
        for vm in ordered(self._view.vms):
            action = self._settled(vm)
            if action is None:
                homeless.append(vm)
            else:
                actions[vm.id] = action
        actions.update(self._into_slots(homeless))
        for vm in homeless:
            if vm.id not in actions:
                actions[vm.id] = self._elsewhere(vm)
        chosen = tuple(actions[vm.id] for vm in ordered(self._view.vms))
        return RecoveryPlan(actions=chosen, releases=self._releases(actions), reclaims=self._reclaims(actions))

    # VMs for which no place has to be found

    def _settled(self, vm: VmState) -> Action | None:
        """What is done about a VM that needs no other host now; ``None`` where it does."""
        if vm.running and not self._host(vm.assigned).unattended:
            return _action(vm, ActionKind.DONE if vm.unfinished else ActionKind.WAIT, "running", host=vm.assigned)
        loud = [holder for holder in vm.holders if not holder.fenced]
        if loud:
            return self._held_back(vm, loud)
        if not vm.wanted:
            kind = ActionKind.DROP if vm.holders or vm.unfinished else ActionKind.WAIT
            return _action(vm, kind, "not-wanted", "nobody wants it to run")
        if self._view.unsettled:
            return self._unsettled(vm)
        return self._left_to_its_host(vm)

    def _held_back(self, vm: VmState, loud: Sequence[HolderState]) -> Action:
        """Somebody may still run it."""
        for holder in loud:
            host = self._host(holder.host)
            if not holder.known:
                return _action(
                    vm,
                    ActionKind.HOLD,
                    "membership-missing",
                    f"{host.name} may still run it, and its Membership is not there or is another one",
                    host=host.name,
                    remedy=f"restore Membership/{host.name}; or, once you know that the machine which ran it is off or "
                    f"empty: outlive fence {host.name} --confirm-off --membership {holder.uid} "
                    '--reason "..."',
                )
            if host.unconfirmed:
                return _action(
                    vm,
                    ActionKind.HOLD,
                    "fence-unconfirmed",
                    f"{host.name} is condemned, and nothing proves yet that it is off",
                    host=host.name,
                    remedy=f'outlive fence {host.name} --confirm-off --reason "..." once you know that it is off',
                )
            if host.unattended:
                return _unattended(vm, host)
        host = self._host(loud[0].host)
        why = "its fence is under way" if host.health is HostHealth.REVOKED else f"{host.name} holds it"
        return _action(vm, ActionKind.WAIT, "held-by-host", why, host=host.name)

    def _unsettled(self, vm: VmState) -> Action:
        view = self._view
        named = ", ".join(view.unsettled[:NAMED]) + (", ..." if len(view.unsettled) > NAMED else "")
        return _action(
            vm,
            ActionKind.HOLD,
            "store-restored",
            f"the store was restored from a backup, and {len(view.unsettled)} hosts have not joined since: {named}",
            remedy="start their daemons; or, once you know that they run nothing, set confirmedIncarnation of "
            f"Cluster/default to {view.incarnation}",
        )

    def _left_to_its_host(self, vm: VmState) -> Action | None:
        """Whether the host that it is assigned to is to start it: it lives, has not refused, and has time left.

        A VM whose source died while it was moved goes on to where it was bound for, in the room that is kept for it
        there: no slot was promised for that.
        """
        host = self._host(vm.assigned)
        if vm.refusal:
            return None
        bound = host.starts if all(one.host != vm.assigned for one in vm.holders) else host.takes
        if vm.arriving and vm.holders and bound:
            detail = f"it was being moved to {host.name}, which keeps room for it"
            return _action(vm, ActionKind.PLACE, MOVED_THERE, detail, host=host.name)
        if vm.blocked and bound:
            return _action(
                vm,
                ActionKind.HOLD,
                "disk-locked",
                f"{host.name} may not start it, and no other host may: {vm.blocked}",
                host=host.name,
                remedy="see who has its disk open and end that, or prove that host dead (outlive fence HOST); "
                "it is tried again by itself",
            )
        if vm.awaits and bound and vm.waited_s < self._view.start_limit_s + vm.awaits_s:
            return _action(vm, ActionKind.WAIT, "awaits-others", vm.awaits, host=host.name)
        if bound and vm.waited_s < self._view.start_limit_s:
            return _action(vm, ActionKind.WAIT, "starting", f"{host.name} is to start it", host=host.name)
        if vm.holders or (vm.unfinished and not vm.waits_for_host):
            return None
        if host.health is HostHealth.RELEASED:
            return _action(
                vm,
                ActionKind.HOLD,
                HOST_STOPPED,
                f"{host.name} was stopped in order, and the VM is assigned to it",
                host=host.name,
                remedy=f"start {host.name} again, or move the VM to another host",
            )
        if host.health in (HostHealth.REVOKED, HostHealth.DEAD):
            return None
        if host.health is HostHealth.UNKNOWN and vm.waited_s >= self._view.start_limit_s:
            return _action(
                vm,
                ActionKind.HOLD,
                HOST_NOT_JOINED,
                f"{host.name}, which it is assigned to, has no Membership and starts nothing",
                host=host.name,
                remedy=f"see why {host.name} does not join, or move the VM to another host",
            )
        if host.unattended:
            return _unattended(vm, host)
        return _action(vm, ActionKind.WAIT, "not-ours", f"it is {host.name}'s to start", host=host.name)

    # VMs that need another host

    def _into_slots(self, homeless: Sequence[VmState]) -> dict[str, Action]:
        """A slot for as many as possible, the most important first; each its own if it has one."""
        usable = [slot for slot in self._view.slots if slot.ready and self._host(slot.host).takes]
        numbers = {slot.name: number for number, slot in enumerate(usable)}
        ids = {vm.id for vm in homeless}
        sharers = {slot.name: sum(1 for member in slot.members if member in ids) for slot in usable}
        wishes: list[list[int]] = []
        for vm in homeless:
            mine = [slot for slot in usable if _may_take(vm, slot)]
            mine.sort(key=lambda slot: (slot.consumer is None, sharers[slot.name], len(slot.members), slot.name))
            wishes.append([numbers[slot.name] for slot in mine])
        actions: dict[str, Action] = {}
        for vm, number in zip(homeless, matched(wishes), strict=True):
            if number is not None:
                slot = usable[number]
                rivals = [one for one in slot.members if one != vm.id and (one in ids or self._is_affected(one))]
                reason, detail = PROMISED, f"slot {slot.name} on {slot.host} was promised to it"
                if rivals:
                    named = ", ".join(rivals[:NAMED]) + (", ..." if len(rivals) > NAMED else "")
                    reason, detail = CONTESTED, f"slot {slot.name} on {slot.host}, to which {named} had a claim as well"
                actions[vm.id] = _action(vm, ActionKind.SLOT, reason, detail, host=slot.host, slot=slot.name)
        return actions

    def _is_affected(self, name: str) -> bool:
        """Whether the VM has lost its host, or is about to: it may need its slots as well."""
        vm = self._vms.get(name)
        if vm is None or not vm.wanted:
            return False
        return self._host(vm.assigned).health in (HostHealth.REVOKED, HostHealth.DEAD)

    def _elsewhere(self, vm: VmState) -> Action:
        """No slot is left: any host with room."""
        if vm.offers is None:
            return _action(vm, ActionKind.SEARCH, "no-slot", self._why_no_slot(vm))
        target = self._chosen(vm, vm.offers)
        if target is not None:
            detail = f"{self._why_no_slot(vm)}; {target} has room"
            return _action(vm, ActionKind.PLACE, "no-slot", detail, host=target)
        refused = [name for name in vm.avoid if self._host(name).health not in (HostHealth.REVOKED, HostHealth.DEAD)]
        if refused:
            said = f" ({vm.refusal})" if vm.refusal else ""
            detail = f"it was refused or not started by {', '.join(refused[:NAMED])}{said}, and no other host has room"
            return _action(vm, ActionKind.HOLD, "refused", detail, remedy="see why they refused it; it is tried again")
        detail = f"{self._why_no_slot(vm)}, and no living host has room for it"
        return _action(
            vm, ActionKind.HOLD, "no-room", detail, remedy="add a host, stop other VMs, or repair a dead one"
        )

    def _chosen(self, vm: VmState, offers: Sequence[str]) -> str | None:
        """Of the hosts that placement allows and that have room, the one that the VM's selector prefers.

        It is booked, so that the next VM finds less room.
        """
        allowed = [name for name in offers if name not in vm.avoid and self._host(name).takes]
        given = RecoverInput(
            node=vm.assigned,
            fence_ok=True,
            vms=(
                LostVm(
                    uuid=vm.id,
                    state=RESTARTED_STATE,
                    node=vm.assigned,
                    memory=vm.memory_bytes / MEBIBYTE,
                    vcpus=vm.cpu_milli / 1000,
                    node_limit=vm.host_limit or None,
                    selector=vm.selector or None,
                ),
            ),
            nodes=tuple(self._figures(name) for name in allowed if self._fits(vm, name)),
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

    def _fits(self, vm: VmState, host: str) -> bool:
        """Whether the VM fits beside everything that is planned so far."""
        return fits(vm, self._free.get(host, Free()))

    def _figures(self, host: str) -> NodeFigures:
        """The host's room is what it has left after VMs, slots and plans, whatever a selector takes it to be."""
        known = self._host(host)
        return NodeFigures(
            name=host,
            daemon_state=RUN,
            domain_state=READY,
            memory=NodeMemory(free=self._free.get(host, Free()).memory_bytes / MEBIBYTE),
            vcpu_allocated=known.vcpu_milli / 1000,
            domains_count=known.vms,
        )

    def _why_no_slot(self, vm: VmState) -> str:
        mine = [slot for slot in self._view.slots if vm.id in slot.members]
        told = (self._why_not(vm, slot) for slot in mine[:NAMED])
        return "; ".join(told) if mine else "no slot was promised to it"

    def _why_not(self, vm: VmState, slot: SlotState) -> str:
        """Why it does not go into this slot of its own."""
        host = self._host(slot.host)
        said = f"slot {slot.name} on {slot.host}"
        if host.health is not HostHealth.LIVE:
            return f"{said}: its host is {host.health.value}"
        if host.refuses:
            return f"{said}: {host.refuses}"
        if slot.consumer is not None and slot.consumer.vm != vm.id:
            return f"{said} was taken by {slot.consumer.vm}"
        if slot.host in vm.avoid:
            return f"{said}: its host did not start it"
        if not slot.ready:
            return f"{said} is not ready"
        if not may_run_on(vm, slot.host):
            return f"{said}: it may not run there, by its hostLimit"
        if not fits(vm, slot):
            return f"{said} is too small for it"
        return f"{said} goes to a VM that has no other"

    # Slots to be put right

    def _releases(self, actions: dict[str, Action]) -> tuple[Release, ...]:
        """Slots whose consumer can never come in, or is somewhere else.

        A claim is taken back only where the VM's own document already leads elsewhere: whoever would still act on the
        claim then loses his compare-and-swap on the VM.
        """
        found: list[Release] = []
        for slot in self._view.slots:
            consumer = slot.consumer
            if consumer is None:
                continue
            vm = self._vms.get(consumer.vm)
            if vm is None:
                if consumer.vm in self._view.gone:
                    found.append(Release(slot=slot.name, vm=consumer.vm, why="the VM is gone"))
                continue
            if vm.slot == slot.name and vm.assigned == slot.host:
                continue
            loud = any(not holder.fenced for holder in vm.holders)
            led_away = vm.unfinished and vm.slot and not vm.holders and vm.slot != slot.name
            nobody = not vm.wanted and not vm.holders and not vm.unfinished
            if (loud or led_away or nobody) and actions[vm.id].slot != slot.name:
                where = f"it is on its way to {vm.assigned}" if led_away else f"{vm.assigned or 'nobody'} has it"
                found.append(Release(slot=slot.name, vm=vm.id, why="nobody wants it to run" if nobody else where))
        return tuple(found)

    def _reclaims(self, actions: dict[str, Action]) -> tuple[Reclaim, ...]:
        slots = {slot.name: slot for slot in self._view.slots}
        found: list[Reclaim] = []
        for vm in self._view.vms:
            slot = slots.get(vm.slot)
            under_way = vm.unfinished and actions[vm.id].kind is ActionKind.WAIT and slot is not None
            if under_way and slot is not None and slot.consumer is None and slot.host == vm.assigned:
                found.append(Reclaim(slot=slot.name, vm=vm.id, fence=vm.fence))
        return tuple(found)

    def _host(self, name: str) -> HostState:
        return self._hosts.get(name) or HostState(name=name, health=HostHealth.UNKNOWN)


def asked(
    view: RecoveryView, offers: Mapping[str, tuple[str, ...]], free: Mapping[str, Free], hosts: Iterable[HostState]
) -> RecoveryView:
    """The view with placement's answers, and the hosts that they name."""
    vms = tuple(msgspec.structs.replace(vm, offers=offers.get(vm.id, vm.offers)) for vm in view.vms)
    known = {host.name: host for host in (*view.hosts, *hosts)}
    return msgspec.structs.replace(view, vms=vms, hosts=tuple(known[name] for name in sorted(known)), free={**free})


def _may_take(vm: VmState, slot: SlotState) -> bool:
    free = slot.consumer is None or (slot.consumer.vm, slot.consumer.fence) == (vm.id, vm.fence)
    able = slot.host not in vm.avoid and may_run_on(vm, slot.host) and fits(vm, slot)
    return vm.id in slot.members and free and able


def _unattended(vm: VmState, host: HostState) -> Action:
    return _action(
        vm,
        ActionKind.HOLD,
        "unattended",
        f"{host.name} is silent, and no coordinator lives that could prove that it is off",
        host=host.name,
        remedy=f"start the daemon of a coordinator, or of {host.name}; "
        "or set spec.mode of a living host to coordinator and restart its daemon",
    )


def _action(
    vm: VmState,
    kind: ActionKind,
    reason: str,
    detail: str = "",
    *,
    host: str = "",
    slot: str = "",
    remedy: str = "",
) -> Action:
    return Action(
        vm=vm.id, kind=kind, fence=vm.fence, host=host, slot=slot, reason=reason, detail=detail, remedy=remedy
    )


def _only_waits(plan: RecoveryPlan) -> bool:
    return all(action.kind is ActionKind.WAIT for action in plan.actions) and not plan.releases and not plan.reclaims


RECOVERY_PLAN: Final = Decision(
    "recovery.plan",
    plan_recovery,
    RecoveryView,
    RecoveryPlan,
    "Where each virtual machine of dead hosts restarts, or why it is held",
    _only_waits,
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (RECOVERY_PLAN, *PROTOCOL_DECISIONS)
"""All of them."""
