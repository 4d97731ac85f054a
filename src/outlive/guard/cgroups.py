"""The VM cgroups: who is left in them, and killing everybody who is.

Left means listed in a ``cgroup.procs`` anywhere below the root, or the kernel's own word (``populated`` in
``cgroup.events``), which stays until a killed process has closed its files: the list forgets it earlier, while its
last writes may be on their way to a disk. Nobody is left only where that was read: of the kernel's own tree (version
2), or of one that does not have the root any more, because systemd removes the slice with its last machine. Anything
else counts as somebody. Killing is asked of the kernel (``cgroup.kill``) and then of each process that is still listed,
by a handle that cannot mean a later process of the same number.

In a rehearsal ``folders`` stand in for the kernel's tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterator
from typing import Final, NamedTuple

GROUPS: Final = 20_000
"""Groups below the root that one look reads; what is beyond counts as somebody left."""
PROCS: Final = "cgroup.procs"
KILL: Final = "cgroup.kill"
EVENTS: Final = "cgroup.events"
VERSION_2: Final = 0x63677270
"""What ``statfs`` calls the file system of cgroup v2."""

_libc = ctypes.CDLL(None, use_errno=True)
_TYPE: Final = ctypes.c_uint if os.uname().machine == "s390x" else ctypes.c_long
"""Of the first member of ``struct statfs``."""


class Found(NamedTuple):
    """What a look found."""

    processes: int
    unreadable: int
    populated: bool
    """Whether the kernel says that somebody is in there; false where it does not say."""

    @property
    def left(self) -> int:
        """Processes, and whatever may hide one."""
        return max(self.processes + self.unreadable, int(self.populated))


def is_version_2(path: str) -> bool:
    """Whether this is a group of cgroup v2; not where it cannot be asked."""
    answer = ctypes.create_string_buffer(512)
    if _libc.statfs(os.fsencode(path), answer) != 0:
        return False
    return _TYPE.from_buffer(answer).value & 0xFFFFFFFF == VERSION_2


def count_processes(root: str, *, folders: bool = False) -> Found:
    """Count without touching anything."""
    if _is_missing(root, folders):
        return Found(0, 0, False)
    if not (os.path.isdir(root) if folders else is_version_2(root)):  # noqa: PTH112 - one of the calls of a look
        return Found(0, 1, False)
    processes = unreadable = 0
    for group, trouble in _walk_groups(root):
        pids = None if trouble else _read_pids(group)
        if pids is None:
            unreadable += 1
        else:
            processes += len(pids)
    return Found(processes, unreadable, _is_populated(root, folders))


def kill(root: str, *, folders: bool = False) -> Found:
    """Kill everything below the root, then count who is left; the killed may still be listed for a moment."""
    _ask_kernel(root)
    for group, trouble in _walk_groups(root):
        for pid in (None if trouble else _read_pids(group)) or ():
            _kill_listed(group, pid)
    return count_processes(root, folders=folders)


def list_processes(root: str) -> set[int]:
    """The processes that are listed below the root."""
    return {pid for group, trouble in _walk_groups(root) if not trouble for pid in _read_pids(group) or ()}


def _is_missing(root: str, folders: bool) -> bool:
    """Whether the tree can be read and does not have the root."""
    parent, name = os.path.split(root)
    try:
        names = os.listdir(parent)  # noqa: PTH208 - as above
    except OSError:
        return False
    return name not in names and (folders or is_version_2(parent))


def _ask_kernel(root: str) -> None:
    """The whole subtree at once, where the kernel can; else each process gets its signal from us."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{root}/{KILL}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)


def _walk_groups(root: str) -> Iterator[tuple[str, bool]]:
    """Every group from the root down, each with whether it cannot be read."""
    waiting = [root]
    for _ in range(GROUPS):
        if not waiting:
            return
        group = waiting.pop()
        try:
            with os.scandir(group) as entries:
                waiting.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
        except OSError:
            yield group, True
        else:
            yield group, False
    if waiting:
        yield root, True


def _is_populated(root: str, folders: bool) -> bool:
    try:
        with open(f"{root}/{EVENTS}", "rb") as file:  # noqa: PTH123 - one of the calls of a look
            return b"populated 1" in file.read()
    except OSError as error:
        if folders and isinstance(error, FileNotFoundError):
            return False
        return not _is_missing(root, folders)


def _read_pids(group: str) -> list[int] | None:
    """The processes of one group; ``None`` where that is not known. A process of another pid namespace is a 0.

    A threaded group (libvirt makes them for virtual processors) refuses the question: its processes are listed above.
    """
    try:
        with open(f"{group}/{PROCS}", "rb") as file:  # noqa: PTH123 - a thousand of these a look; Path costs more
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        threaded = isinstance(error, OSError) and error.errno == errno.EOPNOTSUPP
        gone = not os.path.isdir(group)  # noqa: PTH112 - as above
        return [] if threaded or gone else None


def _kill_listed(group: str, pid: int) -> None:
    """SIGKILL, unless the process has gone and its number may be somebody else's by now."""
    if pid <= 0:
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if pid in (_read_pids(group) or ()):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(handle)
