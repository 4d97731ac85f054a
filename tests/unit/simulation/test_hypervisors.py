"""Simulated domains behave as those of a real hypervisor, also when somebody dies in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loops import run
from tests.support.virtual_hosts import Bench, small_vm

from outlive.base.errors import InUse, Refused, Unavailable, Unknown
from outlive.node.ports import DomainState, MigrationSettings
from outlive.simulation.hosts import HypervisorClient
from outlive.simulation.hypervisors import PHASES
from outlive.simulation.process import Process


def _client(bench: Bench, host: str) -> HypervisorClient:
    process = Process(f"{host}/daemon")
    process.alive = True
    return HypervisorClient(bench.hypervisors[host], process)


def test_create_goes_on_after_its_daemon_was_killed() -> None:
    async def story() -> tuple[str, ...]:
        bench = Bench()
        bench.boot()
        process = Process("h1/daemon")
        client = HypervisorClient(bench.hypervisors["h1"], process)

        async def main() -> None:
            await client.create(small_vm(), run_id="r1", epoch=1)

        process.start(main, lambda ended: None)
        await asyncio.sleep(0.01)
        process.kill()
        assert bench.hypervisors["h1"].creating == ("vm-1",)
        await asyncio.sleep(5.0)
        return tuple(bench.hypervisors["h1"].domains)

    assert run(story()) == ("vm-1",)


def test_one_domain_of_a_vm_on_a_host() -> None:
    async def story() -> None:
        bench = Bench()
        bench.boot()
        client = _client(bench, "h1")
        await client.create(small_vm(), run_id="r1", epoch=1)
        with pytest.raises(InUse):
            await client.create(small_vm(), run_id="r2", epoch=1)
        (found,) = await client.domains()
        assert (found.run_id, found.state) == ("r1", DomainState.RUNNING)
        await client.destroy("vm-1", run_id="another")
        assert len(await client.domains()) == 1
        await client.destroy("vm-1")
        assert await client.domains() == ()

    run(story())


def test_stopped_service_refuses_and_its_domains_run_on() -> None:
    async def story() -> None:
        bench = Bench()
        bench.boot()
        client, hypervisor = _client(bench, "h1"), bench.hypervisors["h1"]
        await client.create(small_vm(), run_id="r1", epoch=1)
        hypervisor.stop_service()
        with pytest.raises(Unavailable):
            await client.domains()
        assert hypervisor.runs("vm-1")
        await client.start_service()
        assert len(await client.domains()) == 1

    run(story())


def test_guest_may_crash_or_ignore_a_shutdown() -> None:
    async def story() -> None:
        bench = Bench()
        bench.boot()
        client, hypervisor = _client(bench, "h1"), bench.hypervisors["h1"]
        await client.create(small_vm(), run_id="r1", epoch=1)
        hypervisor.faults.ignores_shutdown["vm-1"] = True
        await client.shutdown("vm-1")
        await asyncio.sleep(60.0)
        assert hypervisor.runs("vm-1")
        hypervisor.crash("vm-1")
        (found,) = await client.domains()
        assert (found.state, found.crashed) == (DomainState.OFF, True)

    run(story())


def test_start_fails_as_often_as_told() -> None:
    async def story() -> None:
        bench = Bench()
        bench.boot()
        client = _client(bench, "h1")
        bench.hypervisors["h1"].faults.start_fails["*"] = ("no hugepages", 1, False)
        with pytest.raises(Refused, match="hugepages"):
            await client.create(small_vm(), run_id="r1", epoch=1)
        await client.create(small_vm(), run_id="r2", epoch=1)

    run(story())


@pytest.mark.parametrize("phase", ["", *PHASES])
def test_migration_never_has_both_sides_running_whatever_fails(phase: str) -> None:
    async def story() -> tuple[DomainState, DomainState, str]:
        bench = Bench()
        bench.boot()
        source, target = _client(bench, "h1"), _client(bench, "h2")
        await source.create(small_vm(), run_id="r1", epoch=1)
        await target.create(small_vm(), run_id="r2", epoch=1, incoming=MigrationSettings())
        bench.hypervisors["h1"].faults.migration = phase
        error = ""
        try:
            await source.migrate("vm-1", "h2", listens="r2", settings=MigrationSettings())
        except (Refused, Unknown) as raised:
            error = type(raised).__name__
        await asyncio.sleep(5.0)
        assert not {"S1a", "S1b"} & set(bench.broken())
        states = [bench.hypervisors[host].domains["vm-1"].state for host in ("h1", "h2")]
        return states[0], states[1], error

    running, waiting, handed = DomainState.RUNNING, DomainState.INCOMING, DomainState.HANDED_OVER
    assert (
        run(story())
        == {
            "": (handed, running, ""),
            "precopy": (running, waiting, "Refused"),
            "paused": (running, waiting, "Refused"),
            "sent": (handed, waiting, "Unknown"),
            "last": (handed, running, "Unknown"),
        }[phase]
    )


def test_migration_to_a_host_that_dies_leaves_the_source_running() -> None:
    async def story() -> bool:
        bench = Bench()
        bench.boot()
        source, target = _client(bench, "h1"), _client(bench, "h2")
        await source.create(small_vm(), run_id="r1", epoch=1)
        await target.create(small_vm(), run_id="r2", epoch=1, incoming=MigrationSettings())
        moving = asyncio.create_task(source.migrate("vm-1", "h2", listens="r2", settings=MigrationSettings()))
        await asyncio.sleep(1.0)
        bench.hypervisors["h2"].lose_power()
        with pytest.raises(Refused):
            await moving
        return bench.hypervisors["h1"].runs("vm-1")

    assert run(story())


def test_halted_host_runs_nothing_and_goes_on_with_all() -> None:
    async def story() -> None:
        bench = Bench()
        bench.boot()
        hypervisor = bench.hypervisors["h1"]
        await _client(bench, "h1").create(small_vm(), run_id="r1", epoch=1)
        hypervisor.pause()
        assert not hypervisor.runs("vm-1")
        hypervisor.go_on()
        assert hypervisor.runs("vm-1")

    run(story())
