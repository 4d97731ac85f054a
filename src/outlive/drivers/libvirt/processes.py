"""The processes of guests: found by their command line, not by what others know of them; killed by handle.

Each guest of Outlive carries a mark there. One without it was made by somebody else, such as libvirt by itself at a
boot: it is found by the name and UUID that libvirt writes.

A killed process loses its command line, of its first thread or of all, while a thread of it may still wait for a disk
and write. So one that was seen once is there until the kernel has forgotten it (number and start), and until nobody is
left in the cgroup of its VM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from outlive.base import Unavailable, deadline, start_time
from outlive.drivers.libvirt.threads import Threads, consume_error
from outlive.guard import cgroups

MARK: Final = "outlive_"
"""How the name of the monitor begins that every guest's QEMU has: ``outlive_VM_RUN_EPOCH``."""
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
POLL_S: Final = 0.01
USERFAULTS: Final = "anon_inode:[userfaultfd]"
"""What the kernel calls an open file by which a process hears of missing parts of its memory."""
KERNEL_THREAD: Final = 0x0020_0000
"""Of the flags in ``stat``."""


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
    group: str
    """The cgroup of its VM, as a folder; empty where it has none of its own below the slice."""
    uuid: str = ""
    """Of a guest without a mark, whose ``vm`` is libvirt's name for it; empty: it has one."""


def format_mark(vm: str, run_id: str, epoch: int) -> str:
    """Of a run; names of VMs and ids of runs have no underscores."""
    return f"{MARK}{vm}_{run_id}_{epoch}"


class Processes:
    """The guests of this host, and what is known of those whose command line can be read no more."""

    def __init__(self, slice_path: str, proc: str = "/proc", known: Iterable[GuestProcess] = ()) -> None:
        self._slice = slice_path
        self._proc = proc
        self._known = list(known)

    def scan(self) -> list[GuestProcess]:
        """All that are there at some moment after this call."""
        found = [self._refresh_group(one) for one in self._known if is_alive(one, self._proc)]
        seen = {one.pid for one in found if start_time(one.pid, self._proc) == one.started}
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal() and int(entry.name) not in seen:
                new = self._read(int(entry.name))
                if new is not None:
                    found.append(new)
        self._known = found
        return list(found)

    def _read(self, pid: int) -> GuestProcess | None:
        words = _command_words(f"{self._proc}/{pid}")
        marked, foreign = _mark_in(words), _parse_foreign(words)
        began = start_time(pid, self._proc) if marked or foreign else ""
        if not began:
            return None
        if marked is not None:
            vm, run_id, epoch = marked
            return self._refresh_group(GuestProcess(pid, began, vm, run_id, epoch, guarded=False, group=""))
        assert foreign is not None
        name, uuid = foreign
        return self._refresh_group(GuestProcess(pid, began, name, "", 0, guarded=False, group="", uuid=uuid))

    def _refresh_group(self, process: GuestProcess) -> GuestProcess:
        """With the cgroup that it is in now, where that can be read."""
        group = _cgroup_of(f"{self._proc}/{process.pid}/cgroup")
        if not group or start_time(process.pid, self._proc) != process.started:
            return process
        wanted = self._slice.removeprefix("/sys/fs/cgroup").removeprefix("/unified").rstrip("/")
        inside = group == wanted or group.startswith(f"{wanted}/")
        own = _find_own_group(self._slice.rstrip("/"), group[len(wanted) :]) if inside else ""
        return process._replace(guarded=inside, group=own or process.group)


class Scans:
    """Looks at them in a thread: the kernel may keep the reader of a command line waiting for that process.

    One look at a time; callers that ask during one share the next.
    """

    def __init__(self, processes: Processes, limit_s: float) -> None:
        self._processes = processes
        self._limit_s = limit_s
        self._thread = Threads(1, "the processes of this host")
        self._busy = asyncio.Lock()
        self._next: asyncio.Task[list[GuestProcess]] | None = None

    async def scan(self) -> list[GuestProcess]:
        """All that are there at some moment after this call. ``Unavailable`` where that is not known in time."""
        if self._next is None:
            self._next = asyncio.create_task(self._scan_in_thread(), name="look at processes")
            self._next.add_done_callback(consume_error)
        try:
            with deadline(self._limit_s):
                return await asyncio.shield(self._next)
        except TimeoutError:
            why = f"the processes of this host could not be read within {self._limit_s:g} s"
            raise Unavailable(why, remedy="find the process whose /proc/PID/cmdline does not answer") from None

    async def _scan_in_thread(self) -> list[GuestProcess]:
        async with self._busy:
            self._next = None
            return await self._thread.submit(self._processes.scan)


def is_alive(process: GuestProcess, proc: str = "/proc") -> bool:
    """True if a thread of it, or another process in the cgroup of its VM, is left."""
    return start_time(process.pid, proc) == process.started or (process.group != "" and _is_populated(process.group))


def receives(pid: int, proc: str = "/proc") -> bool | None:
    """Whether parts of its memory are still to arrive by post-copy; ``None`` where this process may not look.

    From before the guest runs until all is there its QEMU has the kernel tell it which parts are asked for. This is
    known however busy that QEMU is: it says nothing while it waits for such a part itself.
    """
    try:
        files = [entry.path for entry in os.scandir(f"{proc}/{pid}/fd")]
    except OSError:
        return None
    for file in files:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(file) == USERFAULTS:  # noqa: PTH115 - no path
                return True
    return False


async def kill(process: GuestProcess, limit_s: float) -> bool:
    """True if it and all processes in the cgroup of its VM have ended within the limit."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if start_time(process.pid) == process.started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    if process.group:
        cgroups.kill(process.group)
    end = asyncio.get_running_loop().time() + limit_s
    while is_alive(process):
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _command_words(folder: str) -> list[bytes]:
    """The command line of a process; one whose first thread has ended may have it at another one."""
    line = _read_cmdline(folder)
    if not line and _may_have_threads(folder):
        with contextlib.suppress(OSError):
            tasks = [entry.path for entry in os.scandir(f"{folder}/task")]
            line = next((line for line in map(_read_cmdline, tasks) if line), b"")
    return line.split(b"\0")


def _mark_in(words: list[bytes]) -> tuple[str, str, int] | None:
    """The last monitor with a mark: what a definition has (serial numbers, paths, its own arguments) comes before."""
    begin = b"socket,id=" + MARK.encode()
    after = [word for option, word in pairwise(words) if option == b"-chardev" and word.startswith(begin)]
    if not after:
        return None
    parts = after[-1].removeprefix(begin).split(b",", 1)[0].decode(errors="replace").split("_")
    if len(parts) != 3 or not parts[2].isdecimal():
        return None
    return parts[0], parts[1], int(parts[2])


def _parse_foreign(words: list[bytes]) -> tuple[str, str] | None:
    """Name and UUID of a domain, as libvirt writes them: ``-name guest=NAME,… -uuid UUID``, commas doubled."""
    options = dict(pairwise(words)) if b"-uuid" in words else {}
    name, uuid = (
        options.get(b"-name", b"").decode(errors="replace"),
        options.get(b"-uuid", b"").decode(errors="replace"),
    )
    if not name.startswith("guest=") or not UUID.fullmatch(uuid):
        return None
    return name.removeprefix("guest=").replace(",,", "\0").partition(",")[0].replace("\0", ","), uuid


def _read_cmdline(folder: str) -> bytes:
    try:
        with open(f"{folder}/cmdline", "rb") as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return b""


def _may_have_threads(folder: str) -> bool:
    """Whether it is no thread of the kernel; those have no command line either."""
    try:
        with open(f"{folder}/stat", "rb") as file:  # noqa: PTH123 - as above
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return not int(words[6]) & KERNEL_THREAD


def _cgroup_of(path: str) -> str:
    """The cgroup of a process, as the kernel names it; empty where that cannot be read."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _find_own_group(slice_path: str, below: str) -> str:
    """The folder of the group that libvirt (or systemd for it) made for one VM; empty where there is none."""
    folder = slice_path
    for name in below.split("/")[1:]:
        folder = f"{folder}/{name}"
        if name.startswith("machine-qemu") or name.endswith(".libvirt-qemu"):
            return folder if Path(folder, cgroups.EVENTS).exists() else ""
    return ""


def _is_populated(group: str) -> bool:
    """Whether somebody is in there; a group that has gone was empty, or the kernel had not let it go."""
    try:
        with open(f"{group}/{cgroups.EVENTS}", "rb") as file:  # noqa: PTH123 - as above
            return b"populated 1" in file.read()
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENODEV)
