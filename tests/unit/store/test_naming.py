"""Names of many VMs cost one listing at most, and none where nobody is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.base import LoopClock, Random, SeededIds
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.store import MATCHES, MemoryStore, ObjectNames, names_by_id


class CountedReads(MemoryStore):
    """Counts listings and reads of single objects."""

    pages = 0
    reads = 0

    async def list(self, kind: Any, **more: Any) -> Any:
        self.pages += 1
        return await super().list(kind, **more)

    async def get(self, kind: Any, name: str, **more: Any) -> Any:
        self.reads += 1
        return await super().get(kind, name, **more)


@pytest.mark.parametrize(("wanted", "pages", "reads"), [(0, 0, 0), (3, 0, 3), (MATCHES, 0, MATCHES), (120, 1, 0)])
async def test_names_of_many_vms_cost_one_listing_and_of_none_nothing(wanted: int, pages: int, reads: int) -> None:
    ids = [f"v-{number}" for number in range(130)]
    store = CountedReads(LoopClock(), SeededIds(Random(1)))
    store.load(
        VirtualMachine(metadata=ObjectMeta(name=one), spec=VirtualMachineSpec(display_name=f"web-{one}")) for one in ids
    )
    found = await names_by_id(store, VirtualMachine, ids[:wanted])
    assert (len({one.name for one in found}), store.pages, store.reads) == (wanted, pages, reads)


def test_a_display_name_that_is_the_id_is_shown_once() -> None:
    assert ObjectNames("vm-1", "vm-1").text == "vm-1"
    assert ObjectNames("vm-1", "vm-1", "shop").text == "shop/vm-1"
    assert ObjectNames("9b2f", "web", "shop").text == "shop/web (9b2f)"
