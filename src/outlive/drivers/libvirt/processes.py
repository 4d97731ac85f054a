"""The processes of guests: found by the mark on their command line, whoever else knows of them; killed by handle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = "outlive_"
"""How the name of the monitor begins that every guest's QEMU has: ``outlive_VM_RUN_EPOCH``."""
POLL_S: Final = 0.01


class GuestProcess(NamedTuple):
    """One process that runs a guest, or is about to."""

    pid: int
    started: str
    """When, in the kernel's ticks since boot: tells it from a later one of the same number."""
    vm: str
    run_id: str
    epoch: int
    guarded: bool
    """Whether it is below the slice."""


def mark(vm: str, run_id: str, epoch: int) -> str:
    """Of a run; names of VMs and ids of runs have no underscores."""
    return f"{MARK}{vm}_{run_id}_{epoch}"


def guests(slice_path: str, proc: str = "/proc") -> list[GuestProcess]:
    """All that are there at some moment after this call."""
    found = []
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            words = _marked(f"{proc}/{entry.name}/cmdline")
            if words is not None:
                began = start_time(int(entry.name), proc)
                if began:
                    vm, run_id, epoch = words
                    inside = _inside(f"{proc}/{entry.name}/cgroup", slice_path)
                    found.append(GuestProcess(int(entry.name), began, vm, run_id, epoch, inside))
    return found


def start_time(pid: int, proc: str = "/proc") -> str:
    """When a process was started; empty where it is gone, or only waits to be reaped."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of these a look; Path costs more
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in (b"Z", b"X") and words[17] == b"1" else words[19].decode()


async def kill(process: GuestProcess, limit_s: float) -> bool:
    """Whether it has ended within the limit."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if start_time(process.pid) == process.started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    end = asyncio.get_running_loop().time() + limit_s
    while start_time(process.pid) == process.started:
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _marked(path: str) -> tuple[str, str, int] | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            line = file.read()
    except OSError:
        return None
    at = line.find(b"id=outlive_")
    if at < 0:
        return None
    text = line[at + 3 :].split(b",", 1)[0].split(b"\0", 1)[0].decode(errors="replace")
    parts = text.split("_")
    if len(parts) != 4 or not parts[3].isdecimal():
        return None
    return parts[1], parts[2], int(parts[3])


def _inside(path: str, slice_path: str) -> bool:
    """Whether the process is in a group below the slice, which is named as it is mounted."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return False
    group = next((line[3:] for line in lines if line.startswith("0::")), "")
    wanted = slice_path.removeprefix("/sys/fs/cgroup").removeprefix("/unified").rstrip("/")
    return group == wanted or group.startswith(f"{wanted}/")
