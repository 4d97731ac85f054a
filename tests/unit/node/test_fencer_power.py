"""Silent hosts are condemned and proven dead by their power controllers."""

from __future__ import annotations

import asyncio

from tests.support.fencing import site
from tests.support.loops import run


def test_silent_host_is_condemned_after_seven_seconds_and_dead_three_seconds_later():
    async def story():
        async with site() as s:
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a")
            await asyncio.sleep(20)
            s.silence("d")
            began = s.now()
            condemned = await s.until("d", lambda record: record.state == "Revoked") - began
            dead = await s.until_dead("d") - began
            record = await s.record("d")
            assert 5.5 <= condemned <= 7.5
            assert dead - condemned <= 3.0
            assert record.fence.phase == "proven"
            assert record.proof.kind == "power"
            assert "uuid-d" in record.proof.evidence
            assert not s.power.controllers["d"].on
            assert (await s.record("c")).state == "Held"

    run(story())
