"""A verb comes about though a daemon, a controller or the host ends meanwhile, and who waits for it gets an answer."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Final

import pytest
from tests.support.loops import run
from tests.support.node_worlds import STARTED_S, vm_of

from outlive.base import Random, SeededIds
from outlive.node import request_vm
from outlive.node.vm import follow_request
from outlive.resources import RequestVerb, is_to_run
from outlive.simulation import HostSpec, VmSpec, World, WorldSpec

VERBS: Final[tuple[RequestVerb, ...]] = ("start", "stop", "shutdown", "restart", "disable", "migrate", "move")
CRASHES: Final = {
    "daemon": ("kill-daemon", {"hosts": ["kvm-1"]}),
    "host": ("power-off", {"hosts": ["kvm-1"]}),
    "controller": ("kill-controller", {"names": ["ctl-1"]}),
}
AFTER_S: Final = (0.0, 0.5, 3.0)
"""When it crashes after the request: before it is read, while it is done, and after that."""
LIMIT_S: Final = 300.0
"""Longer than a fence by power, a start elsewhere and the wait for a guest that does not shut down."""
DOWN: Final = ("stop", "shutdown", "disable")


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "crash"), tuple(product(VERBS, CRASHES)))
def test_a_verb_comes_about_though_something_crashes(verb: RequestVerb, crash: str) -> None:
    async def played(after_s: float) -> None:
        hosts = tuple(HostSpec(name=f"kvm-{n}", rack=f"r{n}", mode="coordinator") for n in (1, 2, 3))
        world = World(WorldSpec(hosts=hosts, vms=(VmSpec(name="vm-1", host="kvm-1"),), controllers=2), seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(STARTED_S)
        ids, said = SeededIds(Random(7)), list[str]()
        if verb == "start":
            stop = await request_vm(world.store, world.clock, ids, "vm-1", "stop")
            assert await follow_request(world.store, world.clock, "vm-1", stop.request, said.append)
        target = "kvm-2" if verb == "move" else ""
        asked = await request_vm(world.store, world.clock, ids, "vm-1", verb, target=target)
        await world.clock.sleep(after_s)
        await world.do(*CRASHES[crash])
        try:
            async with asyncio.timeout(LIMIT_S):
                await follow_request(world.store, world.clock, "vm-1", asked.request, said.append)
        except TimeoutError:
            pytest.fail(f"{after_s} s after the request: nobody answers: {said}, {vm_of(world).status}")
        await world.clock.sleep(60.0)  # a host that died meanwhile is fenced, and the VM restarted
        running = world.running_hosts("vm-1")
        assert is_to_run(vm_of(world)) == (verb not in DOWN), after_s
        assert len(running) == (verb not in DOWN), (after_s, running, said)
        assert [str(one).splitlines()[0] for one in world.violations] == [], after_s
        await world.stop()

    for after_s in AFTER_S:
        run(played(after_s))
