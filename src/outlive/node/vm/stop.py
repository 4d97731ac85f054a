"""Ends of a virtual machine's run on this host: hard, by shutting the guest down, and the release of its entry.

An entry is released only after the domain was seen to be absent and no create of that run can still happen; a guest
that is being shut down goes on running if anybody asks for something else meanwhile.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from outlive.base import OutliveError, deadline, get_logger, set_within
from outlive.node.membership.holders import RELEASE, ReleaseView
from outlive.node.ports import DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.locks import find_owners, is_own
from outlive.node.vm.requests import is_asked
from outlive.node.vm.states import (
    VM_EVENT,
    Job,
    VmAction,
    VmEventInput,
    VmState,
    active_move,
    entries_of_host,
    set_phase,
    state_of,
)
from outlive.resources import Rejection, VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import Reason

WATCH_S: Final = 1.0
"""How often a guest that shuts down is looked at."""
ASK_AGAIN_S: Final = 10.0
"""How often it is asked: one that still boots does not hear it."""
_RELEASE: Final = RELEASE.decision
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


async def release(
    node: VmContext,
    vm: str,
    *,
    phase: str | None = None,
    why: Reason | None = None,
    rejection: Rejection | None = None,
    but: str = "",
    never_ran: str = "",
) -> bool:
    """Remove this host's entries (but those of run ``but``); with ``phase``, in the same write, set it.

    ``why``: of the phase; without one: it is to run here, does not yet, and is tried again.
    ``never_ran``: a run for which a guest was sent here, and that certainly never ran. Looks for the domain
    first. ``False`` while a domain is here, or a create may still happen.
    """
    await node.domains.refresh()
    domain, creating = node.domains.by_vm.get(vm), node.domains.creating.get(vm)
    if domain is None and creating is None:
        await _unlock(node, vm)
        never_ran = never_ran or await _ended_while_it_waited(node, vm)
    refused = ""

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        nonlocal refused
        runs = tuple(one.run_id for one in entries_of_host(now, node.lease.me) if one.run_id != but)
        status = now.status
        if runs:
            view = ReleaseView(
                vm=vm,
                host=node.host,
                uid=node.lease.me.uid,
                run_ids=runs,
                holders=status.holders,
                domain_absent=domain is None or domain.run_id == but,
                # a create of this process may still happen; those of others are listed as domains
                creates_under_way=tuple(run for run in runs if run == node.domains.creating.get(vm)),
            )
            outcome = node.decisions.use(_RELEASE, view, subject=vm)
            if outcome.refused is not None:
                refused = outcome.refused.why
                return None
            status = _replace(status, holders=outcome.holders)
        if phase is not None and now.host in (node.host, ""):
            status = set_phase(status, phase, why)
        elif why is not None and now.host == node.host and state_of(now) == VmState.START:
            status = set_phase(status, status.phase, why)
        if rejection is not None and now.host == node.host:
            status = _replace(status, rejection=rejection)
        if never_ran and status.migration is not None:
            status = _replace(status, migration=_replace(status.migration, declined=never_ran))
        return status

    await node.change(vm, change)
    if refused:
        _log.info("vm.not_released", vm=vm, why=refused)
    return not refused


async def _ended_while_it_waited(node: VmContext, vm: str) -> str:
    """The run of it that was to receive a guest here, is gone, and certainly never ran; empty: there is none."""
    known = await node.find(vm)
    if known is None:
        return ""
    waited = next((one.run_id for one in entries_of_host(known, node.lease.me) if one.role == "incoming"), "")
    return waited if waited and await node.domains.decline(vm, waited) else ""


async def _unlock(node: VmContext, vm: str) -> None:
    """Remove this host's own locks on its disks, which a domain that was stopped hard leaves behind.

    Not those that another host with the same address may have taken. A failure does no harm: the host that starts it
    next looks at the locks again.
    """
    known = await node.find(vm)
    if known is None or not known.spec.disks or not entries_of_host(known, node.lease.me):
        return
    try:
        with deadline(float(node.settings.call_limit)):
            for lock in await node.storage.list_locks(known.spec.disks):
                if is_own(node, lock) and (await find_owners(node, known, (lock,))).stale:
                    await node.storage.release(lock)
    except (OutliveError, TimeoutError) as error:
        _log.warning("vm.not_unlocked", vm=vm, host=node.host, error=str(error) or "no answer in time")


async def destroy(node: VmContext, vm: str, *, run_id: str = "") -> bool:
    """Stop it hard; whether nothing of it (or of that run) is left."""
    gone = await node.domains.destroy(vm, run_id=run_id)
    if not gone:
        _log.warning("vm.not_destroyed", vm=vm, run_id=run_id)
    return gone


class Shutdown(StrEnum):
    """How a shutdown ended."""

    DONE = "done"
    CALLED_OFF = "called-off"
    """Somebody asked for something else meanwhile."""
    FAILED = "failed"
    """It could not be stopped."""


async def shut_down(node: VmContext, vm: str, memory: VmMemory) -> Shutdown:
    """Ask the guest to end, again from time to time, and wait; hard after the limit.

    A request of a user interrupts it, so that it is answered now; one that is refused does not begin the limit anew.
    """
    _log.info("vm.shutting_down", vm=vm, host=node.host)
    limit_s = float(node.settings.shutdown_limit)
    ask_s = node.clock.monotonic()
    interrupted_s, memory.shutdown_until_s = memory.shutdown_until_s, None
    until_s = ask_s + limit_s if interrupted_s is None else interrupted_s
    while node.clock.monotonic() < until_s:
        if node.clock.monotonic() >= ask_s:
            ask_s = node.clock.monotonic() + ASK_AGAIN_S
            try:
                await node.domains.shutdown(vm)
            except OutliveError as error:
                _log.warning("vm.shutdown_not_asked", vm=vm, error=str(error))
        memory.changed.clear()
        now = await node.find(vm)
        if now is not None:
            if is_asked(now) and active_move(now) is None:
                memory.shutdown_until_s = until_s
                return Shutdown.CALLED_OFF
            state, host = state_of(now), now.host or None
            given = VmEventInput(this_node=node.host, state=state, node=host, running=True, busy=Job.SHUTDOWN)
            if node.decisions.use(VM_EVENT, given, subject=vm).action is VmAction.ABORT_SHUTDOWN:
                return Shutdown.CALLED_OFF
        await node.domains.refresh()
        domain = node.domains.by_vm.get(vm)
        if domain is None or domain.state is DomainState.OFF or vm in node.domains.ending:
            break
        await set_within(memory.changed, WATCH_S)
    else:
        _log.warning("vm.shutdown_late", vm=vm, limit_s=limit_s)
    return Shutdown.DONE if await destroy(node, vm) else Shutdown.FAILED
