"""One conversation with the kernel's netlink, in a thread of its own.

pyroute2 waits for answers, so no call may run in the event loop. A call that outlives its deadline is abandoned
together with its thread; the next one gets a new thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outlive.base import NotFound, OutliveError, Refused, Unavailable, Unknown, deadline

if TYPE_CHECKING:
    from pyroute2 import IPRoute

CALL_S: Final = 4.0
"""How long one call may take …"""
OPEN_S: Final = 30.0
"""… and opening the socket, for which the library is loaded."""
ABANDONED_LIMIT: Final = 4
"""Threads that may hang in the kernel; with more of them nothing is tried."""
_NEW_NETWORK: Final = 0x40000000
"""``CLONE_NEWNET``."""
T = TypeVar("T")


class Netlink:
    """See the module. ``namespace``: path of the network namespace, such as ``/run/netns/a``; empty: that of the
    process."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._thread: ThreadPoolExecutor | None = None
        self._route: list[IPRoute] = []
        """The socket of this thread, once it is open."""
        self._hanging: list[asyncio.Future[Any]] = []

    async def ask(self, work: Callable[[IPRoute], T], what: str, *, is_change: bool) -> T:
        """The answer of ``work``, which is called in the thread with the open socket. Errors as of ``LinkPort``."""
        self._hanging = [one for one in self._hanging if not one.done()]
        if len(self._hanging) >= ABANDONED_LIMIT:
            raise Unavailable(f"{what}: {len(self._hanging)} calls hang in the kernel", remedy="see dmesg of the host")
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "netlink", initializer=self._enter)
                self._route = []
                await self._run(_open, OPEN_S)
            return await self._run(lambda opened: _work(opened, work), CALL_S)
        except TimeoutError:
            kind = Unknown if is_change else Unavailable
            raise kind(f"{what}: the kernel has not answered within {CALL_S:g} s") from None
        except OSError as error:
            raise _error_of(error, what) from None

    async def _run(self, call: Callable[[list[IPRoute]], T], limit_s: float) -> T:
        """Call it in the thread; a call that is late is abandoned with its thread, and is a ``TimeoutError``."""
        thread, route = self._thread, self._route
        if thread is None:
            raise TimeoutError("the thread was abandoned meanwhile")
        running = asyncio.get_running_loop().run_in_executor(thread, call, route)
        try:
            with deadline(limit_s):
                return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.cancel()  # a call that nobody waits for any more is not made later, when all may be different
            raise
        except TimeoutError:
            self._hanging.append(running)
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._thread is thread:
                thread.submit(_close, route)
                thread.shutdown(wait=False)
                self._thread = None
            raise

    async def close(self) -> None:
        """End the thread, with its socket."""
        if self._thread is not None:
            route, thread = self._route, self._thread
            self._thread = None
            closing = asyncio.get_running_loop().run_in_executor(thread, _close, route)
            thread.shutdown(wait=False)
            with deadline(CALL_S):
                await closing

    def _enter(self) -> None:
        if not self._namespace:
            return
        opened = os.open(self._namespace, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(opened, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "the namespace cannot be entered", self._namespace)
        finally:
            os.close(opened)


def _open(opened: list[IPRoute]) -> None:
    from pyroute2 import IPRoute

    opened.append(IPRoute())


def _work(opened: list[IPRoute], work: Callable[[IPRoute], T]) -> T:
    from pyroute2 import NetlinkError

    if not opened:
        _open(opened)
    try:
        return work(opened[0])
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error


def _close(opened: list[IPRoute]) -> None:
    for one in opened:
        one.close()


def _error_of(error: OSError, what: str) -> OutliveError:
    """What a refusal of the kernel means."""
    why = f"{what}: {error.strerror or error}"
    match error.errno:
        case errno.ENODEV | errno.ENXIO:
            return NotFound(why, remedy="ip link shows the devices of this host")
        case errno.EPERM | errno.EACCES:
            return Refused(why, remedy="run the daemon as root, with CAP_NET_ADMIN and CAP_NET_RAW")
        case errno.EOPNOTSUPP:
            return Refused(why, remedy="load the kernel's module for it: 8021q for VLANs, vxlan, bridge")
        case errno.ENOBUFS | errno.EAGAIN | errno.EINTR:
            return Unavailable(why)
        case _:
            return Refused(why)
