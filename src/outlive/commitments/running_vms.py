"""How many VMs of each flavor run in each zone, followed VM by VM.

Used by capacity (docs/reference/commitments.md#capacity): counting 100,000 VMs anew for every change would take longer
than everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from outlive.placement import VmView


class RunningVms:
    """Counts by zone and flavor. A VM without a zone counts in that of its host, if that is given."""

    def __init__(self, vms: Iterable[VmView] = ()) -> None:
        self._place: dict[str, tuple[str, str]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        for vm in vms:
            self.put(vm)

    def __len__(self) -> int:
        return len(self._place)

    def put(self, vm: VmView, *, host_zone: str = "") -> bool:
        """The VM exists and looks like this now; whether that changes any count."""
        place = (vm.zone or host_zone, vm.flavor)
        before = self._place.get(vm.id)
        if before == place:
            return False
        if before is not None:
            self._subtract(before)
        self._place[vm.id] = place
        self._counts[place] += 1
        return True

    def drop(self, vm: str) -> bool:
        """The VM is gone; whether it was there."""
        place = self._place.pop(vm, None)
        if place is None:
            return False
        self._subtract(place)
        return True

    def count(self, zone: str, flavor: str) -> int:
        """VMs of the flavor in the zone."""
        return self._counts[zone, flavor]

    def _subtract(self, place: tuple[str, str]) -> None:
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
