"""``outlive guard``: reads the command line, takes what the guard needs to run undisturbed, and runs it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from outlive.guard.options import GuardOptions, read
from outlive.guard.process import Guard, GuardLog
from outlive.guard.states import BAD_INPUT, FORBIDDEN, IN_USE, NOT_FOUND, UNAVAILABLE, YES, GuardError

MEMORY_CURRENT_AND_FUTURE: Final = 3
PRIORITY: Final = 50
"""Among real-time processes: above none of the kernel's own, which start at 50 as well and run first."""


def _lock_memory() -> None:
    """No page of the guard is ever swapped out."""
    # with a limit, memory that is needed later would be refused instead of swapped, which is worse
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if ctypes.CDLL(None, use_errno=True).mlockall(MEMORY_CURRENT_AND_FUTURE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _take_priority() -> None:
    """Scheduled before every ordinary process; children are ordinary again."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))


def _stay_in_memory_need() -> None:
    """Never chosen by the kernel's out-of-memory killer."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - before anything else
        file.write("-1000")


UNDISTURBED: Final = {
    "memory-lock": _lock_memory,
    "priority": _take_priority,
    "memory-need": _stay_in_memory_need,
}
"""What the guard takes to run undisturbed. It runs without, too, and says so."""


def main(arguments: Sequence[str]) -> int:
    """Run the guard, or ask the one that runs; returns the exit code."""
    try:
        options = read(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else YES
    try:
        return _show(options) if options.status else _run(options)
    except GuardError as error:
        print(f"outlive guard: {error}", file=sys.stderr)
        return error.exit_code


def _run(options: GuardOptions) -> int:
    journal = GuardLog()
    place = Address(options.socket)
    listening = place.listen()
    try:
        for what, take in UNDISTURBED.items():
            try:
                take()
            except (OSError, ValueError, AttributeError) as error:
                why = getattr(error, "strerror", None) or str(error)
                journal.write("guard.not-permitted", what=what, why=why, remedy="run the guard as root")
        watchdog = options.laboratory or options.watchdog
        journal.write("guard.started", socket=options.socket, watchdog=watchdog, cgroup=options.cgroup)
        return Guard(options, journal).run(listening)
    finally:
        place.close()


def _show(options: GuardOptions) -> int:
    answer = ask(options.socket, b'{"do":"status"}\n')
    try:
        document = json.loads(answer)
    except ValueError:
        raise GuardError(f"{options.socket}: the process that listens there is no guard", UNAVAILABLE) from None
    print(json.dumps(document, indent=2))
    return YES


BACKLOG: Final = 64
PATH_BYTES: Final = 107
"""What the kernel takes as the path of a socket."""
ASK_LIMIT_S: Final = 3.0
ANSWER_BYTES: Final = 1 << 20


class Address:
    """The guard's socket: one guard for each path, mode 600, held from ``listen`` to ``close``.

    A dead guard's path is taken over: a lock on a file beside it says whether a guard lives, because a socket's file
    stays when its process is killed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = -1

    def listen(self) -> socket.socket:
        """A listening socket. ``GuardError`` where another guard has the path, or it is no place for one."""
        if len(os.fsencode(self._path)) > PATH_BYTES:
            raise GuardError(f"{self._path}: longer than {PATH_BYTES} bytes; choose a shorter --socket", BAD_INPUT)
        try:
            self._take()
            self._remove_old()
            return self._bind()
        except FileNotFoundError as error:
            raise GuardError(f"{self._path}: no such folder; make it, or choose another --socket", NOT_FOUND) from error
        except PermissionError as error:
            raise GuardError(
                f"{self._path}: not permitted; run as root, or choose another --socket", FORBIDDEN
            ) from error
        except OSError as error:
            raise GuardError(f"{self._path}: {error.strerror}; choose another --socket", UNAVAILABLE) from error

    def close(self) -> None:
        """Remove the path; the lock goes with the process."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()

    def _take(self) -> None:
        self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise GuardError(f"{self._path}: a guard runs there already; stop it, or choose --socket", IN_USE) from None

    def _remove_old(self) -> None:
        """The socket of a dead guard; whatever else has that name is left alone."""
        path = Path(self._path)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise GuardError(f"{self._path}: exists and is no socket; choose another --socket", BAD_INPUT)
            path.unlink()

    def _bind(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            listening.bind(self._path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        return listening


def ask(path: str, line: bytes) -> bytes:
    """What the guard at that path answers to one line, for ``outlive guard --status``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ASK_LIMIT_S)
        try:
            connection.connect(path)
            connection.sendall(line)
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < ANSWER_BYTES:
                chunk = connection.recv(65536)
                if not chunk:
                    break
                answer += chunk
        except PermissionError as error:
            raise GuardError(f"{path}: not permitted; ask as root", FORBIDDEN) from error
        except OSError as error:
            why = "it does not answer" if isinstance(error, TimeoutError) else error.strerror
            raise GuardError(f"{path}: {why}; does a guard run? systemctl status outlive-guard", UNAVAILABLE) from error
    return answer
