"""``outlive guard``: reads the command line, takes what the guard needs to run undisturbed, and runs it."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Sequence
from typing import Final

from outlive.guard import address
from outlive.guard.errors import UNAVAILABLE, YES, GuardError
from outlive.guard.journal import Journal
from outlive.guard.options import Options, read
from outlive.guard.process import Guard

MEMORY_CURRENT_AND_FUTURE: Final = 3
PRIORITY: Final = 50
"""Among real-time processes: above none of the kernel's own, which start at 50 as well and run first."""


def lock_memory() -> str:
    """No page of the guard is ever swapped out. Returns the trouble, or nothing."""
    try:
        # with a limit, memory that is needed later would be refused instead of swapped, which is worse
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MEMORY_CURRENT_AND_FUTURE) == 0:
            return ""
        return os.strerror(ctypes.get_errno())
    except (OSError, ValueError, AttributeError) as error:
        return str(error)


def take_priority() -> str:
    """Scheduled before every ordinary process; children are ordinary again. Returns the trouble, or nothing."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError as error:
        return str(error.strerror)
    return ""


def stay_in_memory_need() -> str:
    """Never chosen by the kernel's out-of-memory killer. Returns the trouble, or nothing."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - before anything else
            file.write("-1000")
    except OSError as error:
        return str(error.strerror)
    return ""


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


def _run(options: Options) -> int:
    journal = Journal()
    place = address.Address(options.socket)
    listening = place.listen()
    try:
        for what, trouble in (
            ("memory-lock", lock_memory()),
            ("priority", take_priority()),
            ("memory-need", stay_in_memory_need()),
        ):
            if trouble:
                journal.write("guard.not-permitted", what=what, why=trouble, remedy="run the guard as root")
        journal.write("guard.started", socket=options.socket, watchdog=options.watchdog, cgroup=options.cgroup)
        return Guard(options, journal).run(listening)
    finally:
        place.close()


def _show(options: Options) -> int:
    answer = address.ask(options.socket, b'{"do":"status"}\n')
    try:
        document = json.loads(answer)
    except ValueError:
        raise GuardError(f"{options.socket}: whoever listens there is no guard", UNAVAILABLE) from None
    print(json.dumps(document, indent=2))
    return YES
