"""A node sends what pods have it announce: once, its own, and nothing that was there before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from tests.support.pod_worlds import PodWorld

from outlive.base import Invalid, NotFound, Random, Unavailable
from outlive.drivers.ovn import PodAnnouncer
from outlive.network import ANNOUNCEMENTS, PodCache


class Recorder:
    """``Announcer`` that keeps what it was given; the first ``failures`` times it fails."""

    def __init__(self, failures: int = 0) -> None:
        self.sent: list[tuple[str, list[bytes], Sequence[int]]] = []
        self._failures = failures

    async def send(
        self, interface: str, frames: Sequence[bytes], schedule_ms: Sequence[int], *, vlan: int | None = None
    ) -> int:
        if self._failures:
            self._failures -= 1
            raise Unavailable("the interface is not there yet")
        self.sent.append((interface, list(frames), schedule_ms))
        return len(frames) * len(schedule_ms)


def announcement(number: str, node: str = "hv-a") -> str:
    one = {"id": number, "hypervisor": node, "interface": "ovn-k8s-mp0", "frames": ["aabb"], "scheduleMs": [0, 500]}
    return json.dumps([one])


async def following(world: PodWorld, recorder: Recorder) -> tuple[PodAnnouncer, asyncio.Task[None]]:
    cache = PodCache(world.server, world.clock, Random(1))
    sender = PodAnnouncer(cache, world.server, recorder, "hv-a", world.clock)
    task = asyncio.get_running_loop().create_task(sender.run())
    await world.settle(1)
    return sender, task


@pytest.mark.parametrize("failures", [0, 2])
async def test_new_announcements_of_a_node_are_sent_once(failures: int) -> None:
    world, recorder = PodWorld(), Recorder(failures)
    world.run("old-1", "old", "hv-a", annotations={ANNOUNCEMENTS: announcement("before")})
    _, task = await following(world, recorder)
    world.run("cart-1", "cart", "hv-a")
    world.run("other-1", "other", "hv-b")
    await world.settle(1)
    world.annotate("cart-1", **{ANNOUNCEMENTS: announcement("m-1")})
    world.annotate("other-1", **{ANNOUNCEMENTS: announcement("m-2", "hv-b")})
    await world.settle(5)
    assert recorder.sent == [("ovn-k8s-mp0", [b"\xaa\xbb"], (0, 500))]
    world.annotate("cart-1", team="blue")
    await world.settle(5)
    assert len(recorder.sent) == 1
    task.cancel()


async def test_one_pod_is_announced_on_demand_and_nonsense_is_told() -> None:
    world, recorder = PodWorld(), Recorder()
    world.run("cart-1", "cart", "hv-a", annotations={ANNOUNCEMENTS: announcement("m-1")})
    sender, task = await following(world, recorder)
    assert await sender.send_pod("shop/cart-1") == 2
    assert await sender.send_pod("shop/cart-1") == 0
    with pytest.raises(NotFound):
        await sender.send_pod("shop/none")
    for text in ("{}", announcement("m-2").replace("aabb", "xy")):
        world.annotate("cart-1", **{ANNOUNCEMENTS: text})
        with pytest.raises(Invalid):
            await sender.send_pod("shop/cart-1")
    task.cancel()
