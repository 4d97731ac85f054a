"""Switching hosts on again that were proven dead, once nothing is held there any more, where the policy asks for it.

Level-triggered: which hosts are off, what is held there and how often it was tried is read from the store at every
look, so that the next fencer goes on where one stopped. Tries are counted in the Membership before each command, and
there are only a few: whoever leaves a host off after that has a reason, or a fault to see. One command that was taken
is enough; nothing here makes sure that the host comes up.
"""

from __future__ import annotations

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.states import (
    POWER_ON_WAITS_S,
    SWITCH_ON,
    SWITCHED_ON,
    TAKEN,
    SwitchedOnView,
    SwitchOnView,
    is_off,
)
from outlive.resources import MemberRecord, VirtualMachine
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import LIST_S, answered, list_all

_log = get_logger("fencing")


class PowerOn:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._off: dict[str, None] = {}
        """Hosts that are proven dead and have not come back."""

    def changed(self, host: str, record: MemberRecord | None) -> None:
        """A Membership changed, or is seen for the first time."""
        if record is not None and is_off(record):
            self._off[host] = None
        else:
            self._off.pop(host, None)

    async def look(self) -> None:
        """Switch on those whose time has come."""
        due = [host for host in self._off if self._due(host)] if self._off and self._context.leads() else []
        held = await self._held(due) if due else {}
        async with OrderedTaskGroup() as group:
            for host in due:
                if not held[host] and self._due(host):
                    group.create_task(self._switch_on(host), name=f"switch on {host}")

    def _due(self, host: str) -> bool:
        """Whether the next try's time has come, if there is one."""
        context, seen = self._context, self._context.watcher.get(host)
        if seen is None or not is_off(seen.record):
            return False
        settings, done = context.rules.settings(host), seen.record.fence.power_on
        if not settings.cluster_spec.fencing.power_on_after or settings.hypervisor is None:
            return False
        now = context.clock.now()
        if settings.fencing.power_in_maintenance(now) or settings.maintenance(now):
            return False
        if done.result == TAKEN or done.tries >= len(POWER_ON_WAITS_S):
            return False
        return context.clock.monotonic() - seen.since >= POWER_ON_WAITS_S[done.tries]

    async def _held(self, hosts: list[str]) -> dict[str, list[str]]:
        """Host → VMs that are held there in its dead epoch or before."""
        found: dict[str, list[str]] = {host: [] for host in hosts}
        epochs = {host: self._epoch(host) for host in hosts}
        async with answered("all virtual machines", LIST_S):
            async for vm in list_all(self._context.store, VirtualMachine):
                for one in vm.status.holders:
                    if one.hypervisor in found and one.epoch <= epochs[one.hypervisor]:
                        found[one.hypervisor].append(vm.name)
        return found

    def _epoch(self, host: str) -> int:
        seen = self._context.watcher.get(host)
        return 0 if seen is None else seen.record.fence.epoch

    async def _switch_on(self, host: str) -> None:
        try:
            await self._try(host)
        except OutliveError as error:
            _log.info("fence.switching_on_put_off", host=host, error=str(error))
        except Exception:  # noqa: BLE001 - one host's trouble must not end the others'
            _log.exception("fence.switching_on_crashed", host=host)

    async def _try(self, host: str) -> None:
        """One try: everything that matters is read fresh, then written down, then commanded, then written down."""
        context, seen = self._context, self._context.watcher.get(host)
        settings = await context.settings(host)
        hypervisor, now = settings.hypervisor, context.clock.now()
        if (
            seen is None
            or hypervisor is None
            or settings.maintenance(now)
            or settings.fencing.power_in_maintenance(now)
        ):
            return
        fence, tries = seen.record.fence.id, seen.record.fence.power_on.tries + 1
        holds = tuple((await self._held([host]))[host])
        begun = await context.take(
            host,
            SWITCH_ON,
            lambda record: SwitchOnView(host=host, record=record, fence=fence, holds=holds),
            lambda record: record.fence.id == fence and record.fence.power_on.tries == tries,
        )
        if begun.refused is not None or begun.record is None or begun.record.fence.power_on.tries != tries:
            return
        async with context.power_slots:
            why = await context.power.switch_on(hypervisor)
        _log.info("fence.switched_on", host=host, fence=fence, tries=tries, failed=why)
        await context.take(
            host,
            SWITCHED_ON,
            lambda record: SwitchedOnView(host=host, record=record, fence=fence, tries=tries, result=why or TAKEN),
            lambda record: record.fence.power_on.result == (why or TAKEN),
        )
