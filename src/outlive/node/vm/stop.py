"""Ends of a virtual machine's run on this host: hard, by shutting the guest down, and the release of its entry.

An entry is released only after the domain was seen to be absent and no create of that run can still happen; a guest
that is being shut down goes on running if anybody asks for something else meanwhile.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.membership.holders import RELEASE, ReleaseView
from outlive.node.ports.hypervisor import DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.locks import lock_owner
from outlive.node.vm.states import (
    VM_EVENT,
    Job,
    VmAction,
    VmEventInput,
    VmState,
    assigned_to,
    in_phase,
    of_host,
    state_of,
)
from outlive.resources import VirtualMachine
from outlive.resources.reasons import Reason
from outlive.resources.vms import Rejection, VirtualMachineStatus

WATCH_S: Final = 1.0
"""How often a guest that shuts down is looked at."""
_RELEASE: Final = RELEASE.decision
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


class Shutdown(StrEnum):
    """How a shutdown ended."""

    DONE = "done"
    FORCED = "forced"
    """The guest did not end in time and was stopped hard."""
    ABORTED = "aborted"
    """Somebody asked for something else meanwhile."""
    FAILED = "failed"
    """It could not be stopped."""


class VmStopper:
    """See the module."""

    def __init__(self, shared: VmContext) -> None:
        self._shared = shared

    async def release(
        self,
        vm: str,
        *,
        phase: str | None = None,
        why: Reason | None = None,
        rejection: Rejection | None = None,
        but: str = "",
        never_ran: str = "",
    ) -> bool:
        """Take back this host's entries (but those of run ``but``); with ``phase``, in the same write, set it.

        ``why``: of the phase; without one: it is to run here, does not yet, and is tried again.
        ``never_ran``: a run for which a guest was sent here, and that certainly never ran. Looks for the domain
        first. ``False`` while a domain is here, or a create may still happen.
        """
        shared = self._shared
        await shared.here.look()
        domain = shared.here.domains.get(vm)
        if domain is None and vm not in shared.here.creating:
            await self._unlock(vm)
        refused = ""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            nonlocal refused
            runs = tuple(one.run_id for one in of_host(now, shared.keeper.me) if one.run_id != but)
            status = now.status
            if runs:
                view = ReleaseView(
                    vm=vm,
                    host=shared.host,
                    uid=shared.keeper.me.uid,
                    run_ids=runs,
                    holders=status.holders,
                    domain_absent=domain is None or domain.run_id == but,
                    creates_under_way=self._under_way(vm, runs),
                )
                outcome = shared.decisions.use(_RELEASE, view, subject=vm)
                if outcome.refused is not None:
                    refused = outcome.refused.why
                    return None
                status = _replace(status, holders=outcome.holders)
            if phase is not None and assigned_to(now) in (shared.host, ""):
                status = in_phase(status, phase, why)
            elif why is not None and assigned_to(now) == shared.host and state_of(now) == VmState.START:
                status = in_phase(status, status.phase, why)
            if rejection is not None and assigned_to(now) == shared.host:
                status = _replace(status, rejection=rejection)
            if never_ran and status.migration is not None:
                status = _replace(status, migration=_replace(status.migration, declined=never_ran))
            return status

        await shared.records.change(shared.move if never_ran else shared.daemon, vm, change)
        if refused:
            _log.info("vm.not_released", vm=vm, why=refused)
        return not refused

    async def _unlock(self, vm: str) -> None:
        """Remove this host's own locks on its disks, which a domain that was stopped hard leaves behind.

        Only as well as it goes: whoever starts it next looks at the locks again.
        """
        shared = self._shared
        known = await shared.find(vm)
        if known is None or not known.spec.disks or not of_host(known, shared.keeper.me):
            return
        try:
            async with asyncio.timeout(float(shared.settings.call_limit)):
                for lock in await shared.storage.locks(known.spec.disks):
                    if lock_owner(lock.address) == lock_owner(shared.storage.address()):
                        await shared.storage.release(lock)
        except (OutliveError, TimeoutError) as error:
            _log.warning("vm.not_unlocked", vm=vm, host=shared.host, error=str(error) or "no answer in time")

    def _under_way(self, vm: str, runs: tuple[str, ...]) -> tuple[str, ...]:
        """Runs of which a create of this process may still happen; those of others are listed as domains."""
        return tuple(run for run in (self._shared.here.creating.get(vm, ""),) if run in runs)

    async def destroy(self, vm: str, *, run_id: str = "") -> bool:
        """Stop it hard; whether nothing of it (or of that run) is left."""
        gone = await self._shared.here.destroy(vm, run_id=run_id)
        if not gone:
            _log.warning("vm.not_destroyed", vm=vm, run_id=run_id)
        return gone

    async def shut_down(self, vm: str, memory: VmMemory) -> Shutdown:
        """Ask the guest to end, and wait; hard after the limit."""
        shared = self._shared
        _log.info("vm.shutting_down", vm=vm, host=shared.host)
        try:
            await shared.here.shutdown(vm)
        except OutliveError as error:
            _log.warning("vm.shutdown_not_asked", vm=vm, error=str(error))
        deadline_s = shared.clock.monotonic() + float(shared.settings.shutdown_limit)
        while shared.clock.monotonic() < deadline_s:
            memory.changed.clear()
            now = await shared.find(vm)
            if now is not None and self._called_off(now):
                return Shutdown.ABORTED
            await shared.here.look()
            domain = shared.here.domains.get(vm)
            if domain is None or domain.state is DomainState.OFF:
                return Shutdown.DONE if await self.destroy(vm) else Shutdown.FAILED
            try:
                async with asyncio.timeout(WATCH_S):
                    await memory.changed.wait()
            except TimeoutError:
                continue
        _log.warning("vm.shutdown_late", vm=vm, limit_s=float(shared.settings.shutdown_limit))
        return Shutdown.FORCED if await self.destroy(vm) else Shutdown.FAILED

    def _called_off(self, vm: VirtualMachine) -> bool:
        view = VmEventInput(
            this_node=self._shared.host,
            state=state_of(vm),
            node=assigned_to(vm) or None,
            running=True,
            busy=Job.SHUTDOWN,
        )
        action = self._shared.decisions.use(VM_EVENT, view, subject=vm.name).action
        return action is VmAction.ABORT_SHUTDOWN
