"""What a daemon learns from its guard over the socket, and what becomes of creates whose daemon was killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.support.guards import T_S, W_S, Cgroups, Guard, until
from tests.support.loops import run_real

from outlive.base import LoopClock, Refused, Unavailable
from outlive.guard import Instants
from outlive.node import GuardClient
from outlive.node.membership import record_of
from outlive.node.ports import Domain, DomainState, HypervisorPort
from outlive.node.vm import LocalDomains, end_former_creates


async def test_the_daemon_learns_all_that_it_needs(guard: Guard, vms: Cgroups) -> None:
    port = GuardClient(str(guard.socket))
    assert not (await port.report()).armed
    with pytest.raises(Refused, match="no renewal was acknowledged"):
        await port.arm(T_S, W_S)
    assert await port.begin_create("early"), "an unarmed guard stops nobody"
    await port.end_create("early")
    await port.beat(port.read_clocks(), 3)
    await port.arm(T_S, W_S)
    report = await port.report()
    assert (report.armed, report.timeout_s, report.watchdog_s, report.gate_open) == (True, T_S, W_S, True)
    while (await port.report()).gate_open:
        pass
    assert not await port.begin_create("late")
    until(lambda: guard.in_phase("empty"), "the host is verified empty")
    with pytest.raises(Refused):
        await port.disarm()
    await port.beat(port.read_clocks(), 4)
    report = await port.report()
    assert (report.gate_open, report.closed_epochs) == (True, (3,))
    with pytest.raises(Unavailable, match="future"):
        await port.beat(Instants(*(each + 60 for each in port.read_clocks())), 4)
    await port.disarm()
    assert not (await port.report()).armed
    await port.close()


async def test_a_guard_that_rehearses_is_never_published_as_armed(guard: Guard) -> None:
    port = GuardClient(str(guard.socket))
    await port.beat(port.read_clocks(), 3)
    await port.arm(30.0, 5.0)
    report = await port.report()
    assert (report.armed, report.hardware) == (True, False)
    assert not record_of(report).armed
    await port.close()


@pytest.mark.parametrize("guests", ["", "below", "the same", "elsewhere", "above", "beside"])
async def test_a_guard_that_would_not_end_the_guests_of_its_host_is_never_published_as_armed(
    guard: Guard, vms: Cgroups, guests: str
) -> None:
    root = vms.root
    folders = {
        "": "",
        "below": f"{root}/outlive",
        "the same": f"{root}/",
        "elsewhere": "/sys/fs/cgroup/machine",
        "above": str(root.parent),
        "beside": f"{root}2",
    }
    port = GuardClient(str(guard.socket), guests=folders[guests])
    report = msgspec.structs.replace(await port.report(), armed=True, hardware=True)
    assert record_of(report).armed == (guests in ("", "below", "the same"))
    if report.misses:
        assert str(root) in report.misses
        assert folders[guests] in report.misses
    await port.close()


async def test_while_an_armed_guard_does_not_answer_nothing_is_created(guard: Guard) -> None:
    port = GuardClient(str(guard.socket), limit_s=0.3)
    await port.beat(port.read_clocks(), 1)
    await port.arm(30.0, 5.0)
    guard.process.send_signal(signal.SIGSTOP)
    assert not await port.begin_create("r")
    with pytest.raises(Unavailable, match="did not answer beat within"):
        await port.beat(port.read_clocks(), 1)
    assert not (await port.report()).armed
    assert not (await port.report()).gate_open
    guard.process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(30):
        while not await port.begin_create("r"):  # once it answers in time again
            pass
    await port.end_create("r")
    guard.process.kill()
    guard.process.wait()
    assert not await port.begin_create("r")
    with pytest.raises(Unavailable):
        await port.end_create("r")
    guard.again()
    assert not (await port.report()).armed
    assert await port.begin_create("r"), "the new guard is not armed, and says so"
    await port.close()


@pytest.mark.parametrize("said", [b"hello\n", b'{"id":99,"ok":true}\n', b"{}\n", b"", b"x" * 300_000])
def test_a_process_that_answers_like_no_guard_is_none(tmp_path: Path, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readline()
            writer.write(said)
            await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_unix_server(answer, tmp_path / "s"):
            port = GuardClient(str(tmp_path / "s"))
            with pytest.raises(Unavailable, match="cannot be reached"):
                await port.beat(port.read_clocks(), 1)
            assert not (await port.report()).armed
            await port.close()

    run_real(main())


async def test_calls_at_once_each_get_their_own_answer(guard: Guard) -> None:
    port = GuardClient(str(guard.socket))
    await port.beat(port.read_clocks(), 1)
    await port.arm(30.0, 5.0)
    calls = [port.begin_create(f"r{n}") for n in range(20)] + [port.begin_create("x" * 500) for _ in range(5)]
    assert await asyncio.gather(*calls) == [True] * 20 + [False] * 5
    assert guard.status()["creates"] == 20
    await port.close()


async def test_where_no_guard_is_nothing_is_stopped(tmp_path: Path) -> None:
    port = GuardClient(str(tmp_path / "none"))
    report = await port.report()
    assert (report.armed, report.gate_open) == (False, True)
    assert await port.begin_create("r")
    await port.end_create("r")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await port.beat(port.read_clocks(), 1)
    with pytest.raises(Unavailable):
        await port.arm(5.0, 10.0)


KILLED = """
import json, socket, sys, time
guard = socket.socket(socket.AF_UNIX)
guard.connect(sys.argv[1])
guard.sendall(json.dumps({"id": 1, "do": "create-begin", "runId": "r1"}).encode() + b"\\n")
print(guard.recv(4096).decode(), flush=True)
time.sleep(600)
"""


class _Listed:
    """A hypervisor that lists these domains."""

    def __init__(self, *domains: Domain) -> None:
        self.listed = domains

    async def list_domains(self) -> tuple[Domain, ...]:
        return self.listed


def _begun_by_a_daemon_that_is_killed(guard: Guard) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", KILLED, str(guard.socket)], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert json.loads(daemon.stdout.readline())["ok"]
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


async def test_create_of_a_killed_daemon_is_ended_once_the_hypervisor_does_not_list_it_as_starting(
    guard: Guard, vms: Cgroups
) -> None:
    port = GuardClient(str(guard.socket))
    await port.beat(port.read_clocks(), 1)
    await port.arm(30.0, 5.0)
    _begun_by_a_daemon_that_is_killed(guard)
    assert (await port.report()).creates == ("r1",)
    starting = Domain(vm="vm-1", run_id="r1", epoch=1, state=DomainState.STARTING)
    hypervisor = _Listed(starting)
    here = LocalDomains(cast(HypervisorPort, hypervisor), LoopClock(), limit_s=1.0)
    assert await end_former_creates(port, here, ()) == 0, "it may still take effect"
    assert (await port.report()).creates == ("r1",)
    hypervisor.listed = (msgspec.structs.replace(starting, state=DomainState.RUNNING),)
    assert await end_former_creates(port, here, ("r1",)) == 0, "it is followed by each process that asks"
    assert await end_former_creates(port, here, ()) == 1
    assert (await port.report()).creates == ()
    await port.close()


def test_host_is_called_empty_although_a_daemon_was_killed_while_it_created(guard: Guard, vms: Cgroups) -> None:
    async def main() -> None:
        port = GuardClient(str(guard.socket))
        _begun_by_a_daemon_that_is_killed(guard)  # before time counts: it takes a process a while to begin
        await port.beat(port.read_clocks(), 1)
        await port.arm(T_S * 2, 5.0)
        here = LocalDomains(cast(HypervisorPort, _Listed()), LoopClock(), limit_s=1.0)
        assert await end_former_creates(port, here, ()) == 1
        await port.close()

    run_real(main())
    until(lambda: guard.in_phase("empty", "lost"), "its time is over")
    assert guard.in_phase("empty")
