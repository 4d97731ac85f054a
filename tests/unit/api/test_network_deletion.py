"""A network that has ports is deleted by force only."""

from __future__ import annotations

import pytest
from tests.support.loops import run
from tests.support.network_controllers import network, port

from outlive.api.admission import check_deletion
from outlive.base.clock import LoopClock
from outlive.base.errors import Refused
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.store.memory import MemoryStore


def test_a_network_that_has_ports_is_deleted_by_force_only() -> None:
    async def claim() -> None:
        store = MemoryStore(LoopClock(), SeededIds(Random(1)))
        for one in (network("green"), network("blue"), port("web.0", "green")):
            await store.create(one)
        with pytest.raises(Refused, match=r"network green has 1 port: web\.0"):
            await check_deletion(network("green"), store)
        await check_deletion(network("green"), store, force=True)
        await check_deletion(network("blue"), store)

    run(claim())
