"""Switching hosts on again that were proven dead, once nothing is held there any more, where the policy asks for it.

Level-triggered: which hosts are off, what is held there and how often it was tried is read from the store at every
look, so that the next fencer goes on where one left off. Tries are counted in the Membership before each command, as
those to switch off are, and there are only a few: whoever leaves a host off after that has a reason, or a fault to
see. One command that was taken is enough; what this does not give is that the host comes up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.condemning import FenceOutcome
from outlive.node.fencing.desk import Desk
from outlive.resources import MemberRecord, ObjectRef, Part, VirtualMachine
from outlive.resources.maintenance import power_maintenance
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.steps import Precondition, ProtocolStep
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import LIST_S, Store, answered, list_all

LOOK_S: Final = 5.0
"""How often is looked for hosts to be switched on."""
WAITS_S: Final = (0.0, 60.0, 300.0)
"""Before each try, since the Membership last changed; so many tries there are."""
TAKEN: Final = "ok"
"""The result of a command that was taken."""

_replace = msgspec.structs.replace
_log = get_logger("fencing")


class SwitchOnView(Part, frozen=True, kw_only=True):
    """A host that was proven dead."""

    host: str
    record: MemberRecord
    fence: str
    """That it was proven dead by, when its VMs were looked for."""
    holds: tuple[str, ...] = ()
    """VMs that are still held there in the epoch that is dead, or before."""
    limit: int = len(WAITS_S)


class SwitchedOnView(Part, frozen=True, kw_only=True):
    """What became of a command to switch on."""

    host: str
    record: MemberRecord
    fence: str
    tries: int
    """Of the command."""
    result: str
    """``ok``, or why not."""


def is_off(record: MemberRecord) -> bool:
    """Whether the host is condemned and proven dead, and has not come back."""
    return record.state == "Revoked" and record.dead_through >= record.fence.epoch > 0


def _try(view: SwitchOnView) -> FenceOutcome:
    fence = view.record.fence
    once_more = _replace(fence.power_on, tries=fence.power_on.tries + 1)
    return FenceOutcome(record=_replace(view.record, fence=_replace(fence, power_on=once_more)))


def _note(view: SwitchedOnView) -> FenceOutcome:
    fence = view.record.fence
    noted = _replace(fence.power_on, result=view.result)
    return FenceOutcome(record=_replace(view.record, fence=_replace(fence, power_on=noted)))


SWITCH_ON: Final = ProtocolStep(
    "fence.switch-on",
    "A host that was proven dead is about to be switched on again",
    SwitchOnView,
    FenceOutcome,
    (
        Precondition[SwitchOnView](
            "off",
            lambda view: is_off(view.record) and view.record.fence.id == view.fence,
            lambda view: f"{view.host} is not proven dead by fence {view.fence}, or has come back",
        ),
        Precondition[SwitchOnView](
            "nothing-held", lambda view: not view.holds, lambda view: f"{view.holds[0]} is still held by {view.host}"
        ),
        Precondition[SwitchOnView](
            "tries-left",
            lambda view: view.record.fence.power_on.tries < view.limit and view.record.fence.power_on.result != TAKEN,
            lambda view: f"{view.host} was switched on, or that was tried {view.record.fence.power_on.tries} times",
        ),
    ),
    _try,
)
SWITCHED_ON: Final = ProtocolStep(
    "fence.switched-on",
    "What became of switching a host on is written down",
    SwitchedOnView,
    FenceOutcome,
    (
        Precondition[SwitchedOnView](
            "that-try",
            lambda view: (
                is_off(view.record)
                and (view.record.fence.id, view.record.fence.power_on.tries) == (view.fence, view.tries)
            ),
            lambda view: f"{view.host} has come back, or somebody has tried again",
        ),
    ),
    _note,
)


class Returns:
    """See the module. ``leads``: whether this fencer is the one that does what everybody could."""

    def __init__(self, desk: Desk, store: Store, leads: Callable[[], bool]) -> None:
        self._desk = desk
        self._store = store
        self._leads = leads
        self._off: dict[str, None] = {}
        """Hosts that are proven dead and have not come back."""
        self._busy: dict[str, None] = {}
        """Hosts that are being switched on."""

    def changed(self, host: str, record: MemberRecord | None) -> None:
        """A Membership changed, or is seen for the first time."""
        if record is not None and is_off(record):
            self._off[host] = None
        else:
            self._off.pop(host, None)

    async def run(self) -> None:
        """Look until cancelled."""
        async with OrderedTaskGroup() as group:
            while True:
                try:
                    await self._look(group)
                except OutliveError as error:
                    _log.info("fence.switching_on_put_off", error=str(error))
                await self._desk.clock.sleep(LOOK_S)

    async def _look(self, group: OrderedTaskGroup) -> None:
        due = [host for host in self._off if self._due(host)] if self._off and self._leads() else []
        if not due:
            return
        held = await self._held(due)
        for host in due:
            if not held[host] and self._due(host):
                self._busy[host] = None
                group.create_task(self._switch_on(host), name=f"switch on {host}")

    def _due(self, host: str) -> bool:
        """Whether the next try's time has come, if there is one."""
        seen = self._desk.watching.get(host)
        if seen is None or host in self._busy or not is_off(seen.record):
            return False
        settings, done = self._desk.rules.settings(host), seen.record.fence.power_on
        if not settings.cluster.fencing.power_on_after or settings.hypervisor is None:
            return False
        if power_maintenance(settings.fencing, self._desk.clock.now()):
            return False
        if done.result == TAKEN or done.tries >= len(WAITS_S) or settings.maintenance(self._desk.clock.now()):
            return False
        return self._desk.clock.monotonic() - seen.since >= WAITS_S[done.tries]

    async def _held(self, hosts: list[str]) -> dict[str, list[str]]:
        """Host → VMs that are held there in its dead epoch or before."""
        found: dict[str, list[str]] = {host: [] for host in hosts}
        epochs = {host: self._epoch(host) for host in hosts}
        async with answered("all virtual machines", LIST_S):
            async for vm in list_all(self._store, VirtualMachine):
                for one in vm.status.holders:
                    if one.hypervisor in found and one.epoch <= epochs[one.hypervisor]:
                        found[one.hypervisor].append(vm.name)
        return found

    def _epoch(self, host: str) -> int:
        seen = self._desk.watching.get(host)
        return 0 if seen is None else seen.record.fence.epoch

    async def _switch_on(self, host: str) -> None:
        try:
            await self._tried(host)
        except OutliveError as error:
            _log.info("fence.switching_on_put_off", host=host, error=str(error))
        except Exception:  # noqa: BLE001 - one host's trouble must not end the others'
            _log.exception("fence.switching_on_crashed", host=host)
        finally:
            del self._busy[host]

    async def _tried(self, host: str) -> None:
        """One try: everything that matters is read fresh, then written down, then commanded, then written down."""
        desk, seen = self._desk, self._desk.watching.get(host)
        settings = await desk.writer.settings(host)
        hypervisor = settings.hypervisor
        if seen is None or hypervisor is None or settings.maintenance(desk.clock.now()):
            return
        if power_maintenance(settings.fencing, desk.clock.now()):
            return
        fence, tries = seen.record.fence.id, seen.record.fence.power_on.tries + 1
        holds = tuple((await self._held([host]))[host])
        begun = await desk.writer.take(
            host,
            SWITCH_ON,
            lambda record: SwitchOnView(host=host, record=record, fence=fence, holds=holds),
            lambda record: record.fence.id == fence and record.fence.power_on.tries == tries,
        )
        if begun.refused is not None or begun.record is None or begun.record.fence.power_on.tries != tries:
            return
        async with desk.power_slots:
            why = await desk.power.switch_on(hypervisor)
        _log.info("fence.switched_on", host=host, fence=fence, tries=tries, failed=why)
        await desk.writer.take(
            host,
            SWITCHED_ON,
            lambda record: SwitchedOnView(host=host, record=record, fence=fence, tries=tries, result=why or TAKEN),
            lambda record: record.fence.power_on.result != "",
        )
        if why and tries >= len(WAITS_S):
            await self._tell(host, why)

    async def _tell(self, host: str, why: str) -> None:
        await self._desk.faults.raise_(
            FaultCode.POWER_UNREACHABLE,
            ObjectRef(kind="Hypervisor", name=host),
            f"{host} could not be switched on again in {len(WAITS_S)} tries: {why}",
            remedy="check its power controller, and switch it on by hand",
            delta=FaultCode.POWER_UNREACHABLE.delta,
        )
