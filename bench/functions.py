"""Virtual functions of a host: from cards that have none to a record with a hundred; cards and store are virtual."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from bench.figures import Figure
from outlive.base import Random, SeededIds, SystemClock
from outlive.node.functions import SriovDevice
from outlive.node.vm import NodeSettings
from outlive.resources import Hypervisor, ObjectMeta
from outlive.roles import HostFunctions, NodePorts, NodeRole
from outlive.simulation import SimCards
from outlive.store import MemoryStore

HOST = "kvm-1"
CARDS = {f"eth{number}": 25 for number in range(4)}
RUNS = 5


async def registered_s() -> float:
    """How long one look takes that makes, registers and writes all of them."""
    clock, ids, none = SystemClock(), SeededIds(Random(1)), cast("Any", None)
    store = MemoryStore(clock, ids)
    await store.create(Hypervisor(metadata=ObjectMeta(name=HOST)))
    machine = cast("Any", SimpleNamespace(boot_id="b"))
    devices = tuple(SriovDevice(device=name, count=count) for name, count in CARDS.items())
    ports = NodePorts(none, none, none, none, none, functions=HostFunctions(SimCards(machine, CARDS), devices))
    role = NodeRole(store, store, NodeSettings(), ports, host=HOST, clock=clock, random=Random(1), ids=ids)
    functions = role.daemon.functions
    assert functions is not None
    began_s = time.perf_counter()
    await functions.reconcile()
    took_s = time.perf_counter() - began_s
    assert len((await store.get(Hypervisor, HOST)).status.virtual_functions) == sum(CARDS.values())
    return took_s


def measure() -> list[Figure]:
    """The figure."""
    slowest_s = max(asyncio.run(registered_s()) for _ in range(RUNS))
    note = "slowest of 5; what cards take comes on top"
    return [Figure("virtual functions: 100 registered", slowest_s, "s", 2, note=note)]
