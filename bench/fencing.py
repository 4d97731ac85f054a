"""How soon a host that lost power is proven dead by its real BMC, and what one answer of it takes.

A server, a coordinator and a host are processes; the host's controller is ``ipmi_sim`` or the Redfish emulator. The
power goes: the daemon is killed and the controller says off. The profile is ``fast`` (silence 5 s, checks 2 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bmc import PASSWORD, USERNAME, Ipmi, Redfish, StateFile
from tests.support.command import Server, spawned, up
from tests.support.hosts import Host

from bench.figures import Figure
from outlive.base import SystemClock, system_random
from outlive.drivers.bmc import Credential, PowerControllers
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, Membership, ObjectMeta
from outlive.store import HttpStore

RUNS = 3
READINGS = 15
WAIT_S = 60.0
LOOK_S = 0.02
PROVEN_S = 10.0
"""Silence 5 s and one or two checks of a second, a command, two readings 2 s apart, and what three renewals cost."""


def measure() -> list[Figure]:
    """For each kind of controller: from the loss of power to the proof, and one reading."""
    figures = []
    for name, kind in (("IPMI", Ipmi), ("Redfish", Redfish)):
        times = [proven_seconds(kind) for _ in range(RUNS)]
        figures.append(
            Figure(
                f"loss of power to proof of power, fast, {name}",
                statistics.median(times),
                "s",
                PROVEN_S,
                note=f"{min(times):.1f} to {max(times):.1f} s",
            )
        )
        figures.append(Figure(f"one reading over {name}: identity and state", reading_seconds(kind) * 1000, "ms"))
    return figures


def proven_seconds(kind: type[Ipmi] | type[Redfish]) -> float:
    """One host is lost."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as closing:
        path = Path(folder)
        system, controller = _controller(path, kind, closing)
        directory = path / "state"
        server = closing.enter_context(up(directory))
        hosts = []
        for name, mode in (("kvm-2", "hypervisor"), ("kvm-1", "coordinator")):
            one = Host(path / name, name, server.url, directory / "token")
            closing.callback(one.close)
            one.sections["server"]["keyFile"] = str(directory / "cluster-key")
            one.sections["host"]["mode"] = mode
            one.configure()
            hosts.append(one.start().ready())
            if mode == "hypervisor":
                _describe(directory, name, controller)
        return asyncio.run(_lost(server, directory, hosts[0], system))


def reading_seconds(kind: type[Ipmi] | type[Redfish]) -> float:
    """Median of one reading after the other."""

    async def credential(_: str) -> Credential:
        return Credential(USERNAME, PASSWORD)

    async def read(host: Hypervisor) -> float:
        port, times = PowerControllers(credential), []
        for _ in range(READINGS):
            began = time.perf_counter()
            await port.read(host)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as closing:
        _, controller = _controller(Path(folder), kind, closing)
        said = FencingSpec(secret="s", **{**_fencing(controller), "system_uuid": controller.system_uuid})
        return asyncio.run(read(Hypervisor(metadata=ObjectMeta(name="h"), spec=HypervisorSpec(fencing=said))))


def _controller(
    path: Path, kind: type[Ipmi] | type[Redfish], closing: contextlib.ExitStack
) -> tuple[StateFile, Ipmi | Redfish]:
    system = StateFile(path / "system").create()
    controller = kind(path, "controller", str(uuid.uuid4()), system.hook)
    controller.start()
    closing.callback(controller.stop)
    return system, controller


def _fencing(controller: Ipmi | Redfish) -> dict[str, Any]:
    if isinstance(controller, Ipmi):
        return {"driver": "ipmi", "address": controller.address, "options": {"cipherSuite": "3"}}
    return {"driver": "redfish", "address": controller.address, "options": {"insecure": "true"}}


def _describe(directory: Path, name: str, controller: Ipmi | Redfish) -> None:
    """Tell the store of the controller and its secret."""
    spec = {**_fencing(controller), "secret": "s", "systemUuid": controller.system_uuid, "profile": "fast"}
    document = {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Hypervisor",
        "metadata": {"name": name},
        "spec": {"management": "node", "fencing": spec},
    }
    for words, said in (
        (["secret", "set", "s", "--username", USERNAME], PASSWORD),
        (["apply", "-f", "-"], json.dumps(document)),
    ):
        done = spawned(*words, "--state-dir", directory, stdin=said.encode())
        if done.code:
            raise RuntimeError(done.err)


async def _lost(server: Server, directory: Path, host: Host, system: StateFile) -> float:
    token = (directory / "token").read_text(encoding="utf-8").strip()
    store = HttpStore(server.url, token, clock=SystemClock(), random=system_random())
    try:

        async def rehearsed() -> bool:
            return (await store.get(Hypervisor, host.name, fresh=True)).status.rehearsed_seq > 0

        async def proven() -> bool:
            return (await store.get(Membership, host.name, fresh=True)).record.dead_through > 0

        await _until(rehearsed, "rehearsed")
        began = time.perf_counter()
        assert host.process is not None
        system.feeds(host.process.pid)
        system.lose_power()
        await _until(proven, "proven dead")
        return time.perf_counter() - began
    finally:
        await store.close()


async def _until(happened: Callable[[], Any], what: str) -> None:
    end = time.perf_counter() + WAIT_S
    while not await happened():
        if time.perf_counter() > end:
            raise RuntimeError(f"within {WAIT_S:g} s it was not {what}")
        await asyncio.sleep(LOOK_S)
