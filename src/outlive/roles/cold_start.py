"""The first slots of a fleet, all at once instead of a few VMs a cycle.

Where no slot exists yet, the whole fleet is planned and written before the first cycle, each slot once with all its
members. The same is done later when most of the fleet has no slot at all, which is what an import into a running
server looks like; it then waits until the import is over. Cycles find nothing missing afterwards, or what the plan
could not serve. If anything goes wrong here, the cycles do the work, as they would have without.
"""

from __future__ import annotations

from typing import Final

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.failover.assembly import Failover, Informers
from outlive.failover.decisions import PLAN
from outlive.failover.keeping.observe import is_slot
from outlive.failover.planner.plan import PlanInput, PlanResult
from outlive.failover.ports import Computer
from outlive.failover.protection import Demands
from outlive.failover.snapshot import plan_input
from outlive.resources.codec import decode_as, encode_canonical
from outlive.roles.planned import write_plan
from outlive.roles.settings import RoleSettings
from outlive.roles.snapshot import gather
from outlive.runtime.decisions import DecisionLog
from outlive.store import Store

INLINE_VMS: Final = 1_000
"""Fleets of so many VMs are planned on the spot; larger ones in a child process."""

BARE_SHARE: Final = 0.5
"""The share of the VMs without any slot from which on a running fleet counts as cold."""
BARE_CYCLES: Final = 5
"""… provided that cycles would need so many rounds for them."""
QUIET_S: Final = 3.0
"""How long the number of VMs must not change before a running fleet is looked at."""

_log = get_logger("failover.cold-start")


class ColdStart:
    """Plans a fleet without slots: ``run`` at the start, ``watch`` from then on."""

    def __init__(
        self,
        store: Store,
        failover: Failover,
        informers: Informers,
        *,
        settings: RoleSettings,
        computer: Computer,
        decisions: DecisionLog,
    ) -> None:
        self._store = store
        self._failover = failover
        self._informers = informers
        self._settings = settings
        self._computer = computer
        self._decisions = decisions

    async def run(self) -> None:
        """Once: plan and write, if there is no slot at all. Never raises for what store or placement refuse."""
        if not any(is_slot(one) for one in self._informers.reservations.items()):
            await self._start()

    async def watch(self) -> None:
        """For ever: plan when the number of VMs has changed, is quiet again, and most VMs have no slot."""
        seen = len(self._informers.vms)
        changed = False
        while True:
            await self._failover.parts.clock.sleep(QUIET_S)
            before, seen = seen, len(self._informers.vms)
            if seen != before:
                changed = True
            elif changed:
                changed = False
                if self._is_cold():
                    await self._start()

    def _is_cold(self) -> bool:
        """Whether most VMs that need slots have none, and they are too many for a few cycles."""
        config = self._settings.failover
        demands = Demands(config.requirements, self._settings.protection)
        held = {
            member
            for slot in self._informers.reservations.items()
            if is_slot(slot) and slot.status.failover_reservation is not None
            for member in slot.status.failover_reservation.allocations
        }
        specs = ((vm.name, vm.spec) for vm in self._informers.vms.items())
        needing = [name for name, vm in specs if demands.required_by(vm.protection, vm.project, vm.flavor) > 0]
        bare = sum(1 for name in needing if name not in held)
        return bare > max(BARE_SHARE * len(needing), BARE_CYCLES * max(0, config.max_vms_to_process))

    async def _start(self) -> None:
        parts = self._failover.parts
        with request_context(greq=new_global_request_id(parts.ids, "failover"), req=""):
            try:
                async with parts.turn:
                    await self._plan()
            except OutliveError as error:
                _log.warning("cold_start.given_up", error=str(error))

    async def _plan(self) -> None:
        parts = self._failover.parts
        gathered = await gather(self._store, parts.source, self._settings)
        given = await plan_input(gathered, parts.placement)
        if not given.classes:
            return
        result = await self._decide(given)
        written = await write_plan(parts.writer, result, gathered.observation.objects)
        _log.info(
            "cold_start.done", missing=result.missing, slots=written.opened, joins=result.reused, failed=result.failed
        )

    async def _decide(self, given: PlanInput) -> PlanResult:
        if len(given.vms) <= INLINE_VMS:
            return self._decisions.use(PLAN, given)
        raw = encode_canonical(given)
        answer = await self._computer.compute(PLAN, raw)
        result: PlanResult = decode_as(PlanResult, answer)
        self._decisions.keep(PLAN, raw, answer, empty=not result.actions)
        return result
