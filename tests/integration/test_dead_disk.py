"""Real guests whose disks die: one that is paused by QEMU, and one that nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lab import guest
from lab.processes import until
from lab.single import Single
from tests.conformance.ports.real_libvirt import RealHypervisors, TwoHosts
from tests.integration.test_hung_disk import disk
from tests.integration.test_libvirt_moves import COUNT
from tests.integration.test_node_libvirt import vm_verb
from tests.support.loops import run_real

from outlive.node.ports import DomainState
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec, complete_vm

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.slow]
BAR_S = 15.0
"""In which a dead disk is seen."""


def writing(name: str, path: Path, console: Path) -> VirtualMachine:
    """A guest that counts on its console and writes to that disk."""
    console.write_text("")
    xml = guest.definition(name, path, console, extra="count_ms=50 write_ms=50")
    return complete_vm(VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(definition=xml)))


@contextlib.contextmanager
def small(folder: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "outlive-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def own_hosts() -> contextlib.closing[RealHypervisors]:
    """Hosts that see what is mounted now: those that were started before do not."""
    return contextlib.closing(RealHypervisors(TwoHosts()))


def counted(console: Path) -> int:
    """How far the guest has counted."""
    return len(COUNT.findall(console.read_text(errors="replace")))


async def counts(console: Path, more: int) -> None:
    wanted = counted(console) + more
    while counted(console) < wanted:  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(0.05)


def test_a_guest_whose_disk_is_full_is_paused_by_an_error_and_runs_on_once_there_is_room(tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        image, ballast, console = folder / "disk", folder / "ballast", tmp_path / "console"
        with image.open("wb") as file:
            file.truncate(1 << 20)
        with own_hosts() as hosts:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            driver = hosts.driver()
            await driver.create(writing("vm-1", image, console), run_id="r1", epoch=1)
            began = time.monotonic()
            while not (found := (await driver.list_domains())[0]).io_error:
                assert time.monotonic() - began < 60, found
                await asyncio.sleep(0.2)
            assert found.state is DomainState.PAUSED
            ballast.unlink()
            await driver.resume("vm-1", run_id="r1")
            (found,) = await driver.list_domains()
            assert (found.state, found.io_error) == (DomainState.RUNNING, False)
            await counts(console, 20)
            await driver.destroy("vm-1")

    with small(tmp_path / "small") as folder:
        run_real(story(folder), limit_s=300)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("qemu-storage-daemon") is None or not Path("/dev/fuse").exists(),
    reason="needs root, FUSE and qemu-storage-daemon",
)
def test_requests_that_nobody_answers_are_seen(tmp_path: Path) -> None:
    async def story(shown: Path, server: int) -> None:
        console = tmp_path / "console"
        with own_hosts() as hosts:
            driver = hosts.driver()
            await driver.create(writing("vm-1", shown, console), run_id="r1", epoch=1)
            await counts(console, 20)
            while not (first := (await driver.disk_io())[0]).done:  # until it has come to write  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            while (await driver.disk_io())[0].done <= first.done:  # and writes on  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            os.kill(server, signal.SIGSTOP)
            stopped = time.monotonic()
            try:
                before = (await driver.disk_io())[0]
                while True:
                    await asyncio.sleep(1)
                    now = (await driver.disk_io())[0]
                    if now.pending and before.pending and now.done == before.done:
                        break
                    assert time.monotonic() - stopped < BAR_S
                    before = now
                (found,) = await driver.list_domains()
                assert found.state is DomainState.RUNNING, "libvirt sees nothing of it"
            finally:
                os.kill(server, signal.SIGCONT)
            await counts(console, 20)
            await driver.destroy("vm-1")

    with disk(tmp_path) as (shown, server):
        run_real(story(shown, server), limit_s=300)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("qemu-storage-daemon") is None or not Path("/dev/fuse").exists(),
    reason="needs root, FUSE and qemu-storage-daemon",
)
def test_daemon_says_within_fifteen_seconds_that_the_disk_of_a_guest_answers_no_more(tmp_path: Path) -> None:
    """The whole way: a server, a daemon, libvirt, QEMU, and a disk that stands still."""
    console, definition = tmp_path / "console", tmp_path / "web.xml"
    console.write_text("")

    def said(single: Single) -> tuple[str, dict[str, datetime]]:
        """Its reason, and when each fault of storage was seen first."""
        faults = [one for one in single.outlive("get", "faults")["items"] if not one.get("ended")]
        (vm,) = single.outlive("get", "vms")["items"]
        seen = {
            one["code"]: datetime.fromisoformat(one["firstSeen"]) for one in faults if "storage-lost" in one["code"]
        }
        return vm["status"].get("reason", ""), seen

    def told_of_both(single: Single) -> datetime | None:
        """When the fault of the VM was seen first, once its reason says so as well."""
        reason, seen = said(single)
        return seen.get("vm-storage-lost") if reason == "storage-lost" else None

    with disk(tmp_path) as (shown, server):
        single = Single(tmp_path / "single")
        try:
            single.start()
            definition.write_text(guest.definition("web", shown, console, extra="count_ms=50 write_ms=50"))
            vm_verb(single, "define", str(definition))
            vm_verb(single, "start", "web", "--wait")
            until(lambda: counted(console) > 40, "it counts and writes", 120, 0.5)
            assert said(single) == ("", {})
            os.kill(server, signal.SIGSTOP)
            stopped = datetime.now(tz=UTC)
            try:
                told = until(lambda: told_of_both(single), "it is told", 60, 0.2)
                took_s = (told - stopped).total_seconds()
            finally:
                os.kill(server, signal.SIGCONT)
            print(f"told after {took_s:.1f} s")
            assert took_s < BAR_S
            until(lambda: said(single) == ("", {}), "it is over", 60, 0.5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)
            single.stop()
