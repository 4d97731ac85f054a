"""What keeps the guard running when the host is in need: memory, processor, and no killing for want of memory.

Each is asked for and none is insisted on: what is not permitted is returned, to be logged.
"""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

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
