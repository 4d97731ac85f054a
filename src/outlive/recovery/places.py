"""Where VMs may go that have no slot left: placement's answers, as for an evacuation by hand.

An answer is a ranking, not a promise of room: the plan books what it gives away, and the host has the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, global_request_id
from outlive.failover.keeping.calls import Call, Caller
from outlive.failover.planning.offers import FreeAmounts
from outlive.failover.ports import PlacementPort
from outlive.failover.vms import view_of_resource
from outlive.placement.request import SILENT
from outlive.resources import VirtualMachine

SEARCHES: Final = 100
"""VMs that one look asks placement about; the others follow in the next."""
OFFERS_S: Final = 20.0
"""How long placement may take for all VMs of one look: recoveries into slots wait for it, and so does failover."""

_log = get_logger("recovery")


class Places:
    """Asks placement."""

    def __init__(self, placement: PlacementPort, free: Callable[[], FreeAmounts], ids: Ids, caller: Caller) -> None:
        self._placement = placement
        self._free = free
        self._ids = ids
        self._caller = caller

    def free(self) -> dict[str, tuple[int, int]]:
        """Host → free milli-cores and bytes, after VMs, all reservations, and VMs that are on their way."""
        return self._free().table()

    async def offers(self, vms: Sequence[VirtualMachine]) -> dict[str, tuple[str, ...]]:
        """VM → hosts that may take it, best first; a VM that could not be asked about is left out."""
        found: dict[str, tuple[str, ...]] = {}
        until_s = asyncio.get_running_loop().time() + OFFERS_S
        for vm in vms[:SEARCHES]:
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
