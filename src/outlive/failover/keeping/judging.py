"""Deciding about clean-up in a cycle: about its suspects, and again about a slot that turned out to be another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlive.failover.config import FailoverConfig
from outlive.failover.keeping.observe import Observation
from outlive.failover.keeping.parts import Parts
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planner.cleanup import CleanInput, CleanResult
from outlive.failover.topology import HOSTS_ALONE, Topology


class Judging:
    """Decides about clean-up in one cycle, as the cycle has seen VMs and hosts."""

    def __init__(
        self,
        parts: Parts,
        config: FailoverConfig,
        seen: Observation,
        views: Mapping[str, VmView],
        topology: Topology = HOSTS_ALONE,
    ) -> None:
        self.views = views
        self._parts = parts
        self._config = config
        self._active = seen.merged.sightings
        self._topology = topology
        self._memberships = 0

    async def about(self, slots: Sequence[SlotView], *, memberships: int) -> CleanResult:
        """``slots`` are all that have to be looked at; ``memberships`` are those of all slots."""
        self._memberships = memberships
        active: dict[str, list[str]] = {}
        members = dict.fromkeys(vm for slot in slots for vm in slot.members)
        for vm in members:
            if vm in self._active:
                active.setdefault(self._active[vm], []).append(vm)
        settings = self._parts.settings
        given = CleanInput(
            vms=tuple(self.views[vm] for vm in members if vm in self.views),
            hosts=tuple(HostView(name=host, active=tuple(vms)) for host, vms in sorted(active.items())),
            slots=tuple(slots),
            memberships=memberships,
            now=self._parts.clock.now(),
            grace_s=settings.grace_pauses * self._config.reconcile_interval_s,
            brake_share=settings.brake_share,
            brake_number=settings.brake_number,
            topology=self._topology.narrowed(
                {host for slot in slots for host in (slot.host, *slot.members.values())}
                | {self.views[vm].host for vm in members if vm in self.views}
            ),
        )
        return await self._parts.decider.clean(given)

    async def judge(self, slot: SlotView, others: Sequence[SlotView]) -> CleanResult:
        """A slot turned out to be another than was seen."""
        return await self.about([slot, *others], memberships=self._memberships)
