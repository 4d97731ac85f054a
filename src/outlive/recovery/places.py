"""Where VMs may go that have no slot left: placement's answers, as for an evacuation by hand.

An answer is a ranking, not a promise of room: the plan books what it gives away, and the host has the last word. Who
fits on no host is not asked about, since the plan would book nothing for it whatever the answer was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, global_request_id
from outlive.failover.calls import Call, Caller
from outlive.failover.offers import free_amounts
from outlive.failover.ports import PlacementPort
from outlive.failover.rules import fits, may_run_on
from outlive.failover.vms import view_of_resource
from outlive.placement.fleet import Fleet
from outlive.placement.request import SILENT
from outlive.recovery.model import AffectedVm, Free
from outlive.resources import VirtualMachine

SEARCHES: Final = 100
"""VMs that one look asks placement about; the others follow in the next."""
OFFERS_S: Final = 20.0
"""How long placement may take for all VMs of one look: recoveries into slots wait for it, and so does failover."""

_log = get_logger("recovery")


def in_vain(vms: Iterable[AffectedVm], free: Mapping[str, Free], schedulable: Callable[[str], bool]) -> frozenset[str]:
    """VMs for which no schedulable host that may run them has room. Equal VMs are judged once."""
    found: set[str] = set()
    judged: dict[tuple[object, ...], bool] = {}
    for vm in vms:
        kind = (vm.cpu_milli, vm.memory_bytes, vm.host_limit, vm.avoid)
        if kind not in judged:
            judged[kind] = not any(
                fits(vm, room) and may_run_on(vm, host) and host not in vm.avoid and schedulable(host)
                for host, room in free.items()
            )
        if judged[kind]:
            found.add(vm.id)
    return frozenset(found)


def whose_turn(vms: Iterable[str], asked: Mapping[str, int], most: int) -> list[str]:
    """At most ``most`` of these, whose asking is longest ago or never was; among equals in the order given.

    ``asked``: VM → number of the question. So whoever placement refuses again and again keeps nobody else from it.
    """
    return sorted(vms, key=lambda vm: asked.get(vm, 0))[:most]


class Places:
    """Asks placement."""

    def __init__(self, placement: PlacementPort, fleet: Fleet, ids: Ids, caller: Caller) -> None:
        self._placement = placement
        self._fleet = fleet
        self._ids = ids
        self._caller = caller
        self._asked: dict[str, int] = {}
        """VM → number of the last question about it, of those that were looked for at the last look."""
        self._questions = 0

    def next(self, vms: Sequence[str]) -> list[str]:
        """Of all VMs that have no place, in the order of restart, those that are asked about at this look."""
        here = set(vms)
        self._asked = {vm: number for vm, number in self._asked.items() if vm in here}
        return whose_turn(vms, self._asked, SEARCHES)

    def free(self) -> dict[str, Free]:
        """Host → what it has left after VMs, all reservations, and VMs that are on their way."""
        return {
            host: Free(cpu_milli=cpu, memory_bytes=memory)
            for host, (cpu, memory) in free_amounts(self._fleet).table().items()
        }

    async def offers(self, vms: Sequence[VirtualMachine]) -> dict[str, tuple[str, ...]]:
        """VM → hosts that may take it, best first; a VM that could not be asked about is left out."""
        found: dict[str, tuple[str, ...]] = {}
        until_s = asyncio.get_running_loop().time() + OFFERS_S
        for vm in vms[:SEARCHES]:
            self._questions += 1
            self._asked[vm.name] = self._questions
            try:
                async with asyncio.timeout_at(until_s):
                    found[vm.name] = (await self._placement.offer(self._call(vm))).hosts
            except TimeoutError:
                _log.warning("recovery.not_placed", vm=vm.name, error=f"placement took longer than {OFFERS_S:g} s")
                break
            except OutliveError as error:
                _log.warning("recovery.not_placed", vm=vm.name, error=str(error))
        return found

    def _call(self, vm: VirtualMachine) -> Call:
        view = view_of_resource(vm)
        call = self._caller.validate(view, "", greq=global_request_id())
        request = msgspec.structs.replace(
            call.request,
            hosts=None,
            options=msgspec.structs.replace(SILENT, read_only=True),
            request_id=self._ids.uuid(),
        )
        return Call(kind=call.kind, request=request)
