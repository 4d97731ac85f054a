"""Whether disks answer their guests: by each guest's own monitor, and by what the kernel says of its threads.

A guest whose disk is dead looks like one that does nothing: it runs, and no request comes back. What tells the two
apart is what is on its way. The devices know that (``inuse`` of a virtio queue). Threads of the process that wait in
the kernel (state D) are counted besides: that is all there is to see where QEMU itself stands still, or where the
device is none of virtio. libvirt is not asked: it would wait for one QEMU that hangs, and keep everybody waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from outlive.base import OutliveError
from outlive.drivers.libvirt.processes import GuestProcess
from outlive.drivers.libvirt.qmp import Qmp
from outlive.drivers.libvirt.runs import Runs
from outlive.drivers.libvirt.threads import Threads
from outlive.node.ports import DiskIo

ANSWER_S: Final = 1.0
"""How long one QEMU may take for one answer."""
ROUND_S: Final = 3.0
"""How long all of them together may take; those that were not asked by then have their turn in the next look."""
AT_ONCE: Final = 64
DISK_DEVICES: Final = frozenset({"virtio-blk", "virtio-scsi"})
QUEUES_LIMIT: Final = 64
"""Queues of one device that are read."""
ANSWERED: Final = tuple(f"{one}_operations" for one in ("rd", "wr", "flush", "unmap"))
ANSWERED_BADLY: Final = tuple(f"failed_{one}" for one in ANSWERED)


class DiskWatch:
    """See the module."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._thread = Threads(1, "the threads of guests")
        self._places: dict[str, tuple[tuple[str, int], ...]] = {}
        """Run → its virtio disks, by their paths in QEMU, and how many queues each has; these never change."""
        self._looks = 0
        self._silent: dict[str, int] = {}
        """Run whose QEMU did not answer when it was asked last → in which look that was."""

    async def read_disk_io(self, processes: Sequence[GuestProcess], limit_s: float) -> tuple[DiskIo, ...]:
        """Of these guests, by name; the kernel is asked in a thread, and waited for no longer than ``limit_s``.

        QEMUs that did not answer when they were asked last are asked after all others, so that they keep nobody
        waiting. One that is not asked in time is left out, or still counts as not answering where it was silent before.
        """
        runs = {one.run_id for one in processes}
        self._places = {run: places for run, places in self._places.items() if run in runs}
        self._silent = {run: look for run, look in self._silent.items() if run in runs}
        self._looks += 1
        waiting: Mapping[int, int] = {}
        with contextlib.suppress(OutliveError, TimeoutError):
            asked = self._thread.submit(lambda: waiting_threads(one.pid for one in processes))
            async with asyncio.timeout(min(limit_s, ANSWER_S)):
                waiting = await asyncio.shield(asked)
        turn, found = asyncio.Semaphore(AT_ONCE), dict[str, DiskIo]()

        async def ask(process: GuestProcess) -> None:
            async with turn:
                one = found[process.run_id] = await self._inspect(process, waiting.get(process.pid, 0))
            if one.done is None:
                self._silent[process.run_id] = self._looks
            else:
                self._silent.pop(process.run_id, None)

        in_order = sorted(processes, key=lambda one: self._silent.get(one.run_id, 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROUND_S):
                await asyncio.gather(*map(ask, in_order))
        for process in processes:
            if process.run_id not in found and process.run_id in self._silent:
                found[process.run_id] = _silent_disk_io(process, waiting.get(process.pid, 0))
        return tuple(sorted(found.values(), key=lambda one: one.vm))

    async def _inspect(self, process: GuestProcess, waiting: int) -> DiskIo:
        done: int | None = None
        pending = 0
        with contextlib.suppress(OutliveError, OSError):
            qmp = await Qmp.open(self._runs.socket_path(process.vm, process.run_id, "qmp"), ANSWER_S)
            try:
                done = count_answered(await qmp("query-blockstats", ANSWER_S))
                pending = await self._count_in_use(qmp, process.run_id)
            finally:
                qmp.close()
        if done is None:
            return _silent_disk_io(process, max(pending, waiting))
        return DiskIo(vm=process.vm, run_id=process.run_id, pending=max(pending, waiting), done=done)

    async def _count_in_use(self, qmp: Qmp, run_id: str) -> int:
        """Requests that its virtio disks have taken and not given back; 0 where this QEMU cannot say."""
        if run_id not in self._places:
            found = []
            for one in await qmp("x-query-virtio", ANSWER_S):
                if one["name"] in DISK_DEVICES:
                    status = await qmp("x-query-virtio-status", ANSWER_S, path=one["path"])
                    found.append((str(one["path"]), min(int(status["num-vqs"]), QUEUES_LIMIT)))
            self._places[run_id] = tuple(found)
        total = 0
        for path, queues in self._places[run_id]:
            for queue in range(queues):
                status = await qmp("x-query-virtio-queue-status", ANSWER_S, path=path, queue=queue)
                total += int(status["inuse"])
        return total


def _silent_disk_io(process: GuestProcess, pending: int) -> DiskIo:
    """A QEMU that does not answer at all waits for something, be it nothing that its threads show."""
    return DiskIo(vm=process.vm, run_id=process.run_id, pending=max(pending, 1), done=None)


def count_answered(stats: Iterable[Mapping[str, Any]]) -> int:
    """Requests that the disks of one QEMU have answered, well or badly, as ``query-blockstats`` counts them."""
    found = 0
    for device in stats:
        counts = device.get("stats", {})
        found += sum(int(counts.get(name, 0)) for name in (*ANSWERED, *ANSWERED_BADLY))
    return found


def waiting_threads(pids: Iterable[int]) -> dict[int, int]:
    """Process → how many of its threads wait in the kernel and hear no signal (state D)."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.scandir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"{task.path}/stat", "rb") as file:  # noqa: PTH123 - many
                    if file.read().rpartition(b")")[2].split()[0] == b"D":
                        found[pid] = found.get(pid, 0) + 1
    return found
