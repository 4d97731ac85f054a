"""The end of a cycle: what is true of every VM now, told VM by VM and in sums.

Told in portions between which others have their turn. What changed since the cycle looked is left to upkeep, which
tells of it as it is (docs/reference/failover.md#upkeep).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.failover.analysis.costs import CostInput, costing
from outlive.failover.analysis.coverage import assess, dividing
from outlive.failover.analysis.tolerance import Tolerating, judge_broken
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.observe import Observation
from outlive.failover.keeping.parts import Parts
from outlive.failover.keeping.turns import Turn
from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import Portions, in_portions, portioned
from outlive.failover.protection import Demanded
from outlive.failover.topology import Topology
from outlive.resources import CoverageStatus

TOLD_TOGETHER = 500
"""VMs whose coverage is told in one turn."""

UNLISTED_REASON = "unlisted-and-moved"
"""Why a VM is not covered that only hosts know, and somewhere else than its slots believe."""

_log = get_logger("failover.cycle")

T = TypeVar("T")


class Closing:
    """Tells what one cycle leaves behind."""

    def __init__(self, parts: Parts, turn: Turn, topology: Topology, *, unit: str) -> None:
        """``topology``: of the hosts that the cycle has seen; ``unit``: the failure domain that fails as one."""
        self._parts = parts
        self._turn = turn
        self._topology = topology
        self._unit = unit

    async def tell(
        self,
        seen: Observation,
        views: Mapping[str, VmView],
        hand: Hand,
        demanded: Demanded,
        broken: frozenset[str] | None,
        *,
        braked: bool,
    ) -> None:
        """Report each VM's coverage; of VMs that changed meanwhile upkeep reports.

        ``broken``: the VMs for which a rule does not hold, ``None`` where that has to be found out again. No VM is
        forgotten that a host still reports, or while the brake holds.
        """
        parts, slots = self._parts, hand.confirmed
        if broken is None:
            broken = await self._share(_broken(slots, views, self._topology))
        for vm in [vm for vm in parts.fails if vm not in views]:
            del parts.fails[vm]
        try:
            covered = await self._everybody(seen, views, slots, demanded, broken)
            await self._levels(seen, slots, demanded, covered)
            await self._forget(seen, views, braked=braked)
        except OutliveError as error:
            _log.warning("coverage.not_told", error=str(error))

    async def _everybody(
        self,
        seen: Observation,
        views: Mapping[str, VmView],
        slots: Sequence[SlotView],
        demanded: Demanded,
        broken: frozenset[str],
    ) -> list[str]:
        """Coverage and tolerance of all VMs; those that need slots and have them."""
        parts, required = self._parts, demanded.required
        division = await self._share(dividing(seen.vms, slots))
        judged = await self._share(judge_broken(broken, required, views, slots, self._topology))
        tolerating = Tolerating(self._unit, broken, judged)
        reasons = Counter[str]()
        covered: list[str] = []
        for vms in portioned(seen.vms, TOLD_TOGETHER):
            told = assess(vms, required, division, broken=broken, fails=parts.fails)
            reasons.update(status.reason for status in told.values() if not status.covered)
            tolerating.add(vms, told)
            covered += [vm for vm, status in told.items() if status.required > 0 and status.covered]
            await parts.clock.sleep(0)
            async with self._turn.hold():
                await parts.coverage.tell({vm: told[vm] for vm in told if not self._turn.stale((vm,))})
        parts.reporter.uncovered(reasons)
        parts.reporter.tolerated(tolerating.done())
        return covered

    async def _levels(
        self, seen: Observation, slots: Sequence[SlotView], demanded: Demanded, covered: Sequence[str]
    ) -> None:
        """What each protection level covers and costs, where there are any."""
        levels = self._parts.protection.levels
        if not levels:
            return
        given = CostInput(
            vms=seen.vms,
            required=demanded.required,
            slots=tuple(slots),
            levels=demanded.levels,
            priorities={name: level.priority for name, level in levels.items()},
            covered=tuple(covered),
        )
        self._parts.reporter.levels(await self._share(costing(given)))

    async def _forget(self, seen: Observation, views: Mapping[str, VmView], *, braked: bool) -> None:
        """Correct or take back what was told of VMs that no source lists any more."""
        parts = self._parts
        for names in portioned(() if braked else await parts.coverage.told(), TOLD_TOGETHER):
            gone = [vm for vm in names if vm not in views and vm not in seen.active]
            strayed = self._strayed(names, seen, views)
            await parts.clock.sleep(0)
            async with self._turn.hold():
                await parts.coverage.tell(strayed, gone=[vm for vm in gone if not self._turn.stale((vm,))])

    def _strayed(
        self, names: Iterable[str], seen: Observation, views: Mapping[str, VmView]
    ) -> dict[str, CoverageStatus]:
        """VMs that only the guard keeps, and that run elsewhere than what was told of them rests on."""
        strayed: dict[str, CoverageStatus] = {}
        for vm in names:
            host = seen.merged.sightings.get(vm) if vm not in views else None
            said = self._parts.coverage.said(vm) if host is not None else None
            if host is None or said is None or not said.covered or said.host == host:
                continue
            strayed[vm] = CoverageStatus(
                required=said.required,
                covered=False,
                host=host,
                reason=UNLISTED_REASON,
                message=f"no VM source lists the VM, and it runs on {host}, not on {said.host}",
                remedy="restore the VM source; the next cycle puts its slots right",
            )
        return strayed

    async def _share(self, work: Portions[T]) -> T:
        return await in_portions(work, self._parts.clock)


def _broken(slots: Sequence[SlotView], views: Mapping[str, VmView], topology: Topology) -> Portions[frozenset[str]]:
    yield
    index = ConflictIndex.build(slots, topology=topology, locations={vm: view.host for vm, view in views.items()})
    return frozenset(index.faulty())
