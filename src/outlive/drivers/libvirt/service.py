"""libvirt's daemon as this process reaches it: every call in a thread, every wait with a limit.

A call that libvirt does not answer keeps its thread and nothing else: the caller gets ``Unknown`` at its deadline, the
event loop goes on, and so do calls for other domains, up to a number of threads; then calls are refused at once. One
thread at a time opens a connection. Keep-alive messages end a connection to a daemon that hangs, which frees its
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import libvirt

from outlive.base import Unavailable, Unknown, deadline, get_logger
from outlive.drivers.libvirt.threads import Threads

T = TypeVar("T")
KEEPALIVE: Final = (3, 3)
"""Seconds between two messages, and how many may be lost."""
OLDEST: Final = (9_000_000, 7_002_000)
"""The oldest libvirt and QEMU that are supported, as libvirt counts versions."""
_log = get_logger("drivers.libvirt")


class LibvirtService:
    """See the module."""

    def __init__(self, uri: str, *, threads: int, limit_s: float) -> None:
        self.uri = uri
        self._limit_s = limit_s
        self._threads = Threads(threads, "libvirt")
        self._connection: libvirt.virConnect | None = None
        self._opening: asyncio.Future[libvirt.virConnect] | None = None
        self.changed: Callable[[str], None] = lambda name: None
        """Called on the event loop with the name of a domain that began, stopped or ended."""

    async def ask(self, question: Callable[[libvirt.virConnect], T]) -> T:
        """The answer to something that changes nothing; asked again over a new connection where that was lost.

        ``Unavailable`` where libvirt does not answer, or answers that it cannot say.
        """
        for attempt in (1, 2):
            try:
                return await self.call(question)
            except Unknown as error:
                if attempt == 2 or self._connection is not None:
                    raise Unavailable(error.message, remedy=error.remedy) from None
            except libvirt.libvirtError as error:
                raise Unavailable(f"libvirt at {self.uri}: {text_of(error)}", remedy="see its log") from None
        raise AssertionError("the second attempt ends")

    async def start(self, command: list[str]) -> None:
        """Start libvirt by that command, and wait until it answers. ``Unknown`` where it does not in time."""
        try:
            made = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            raise Unavailable(f"{command[0]}: {error.strerror}", remedy="set libvirt.startService") from None
        why = Unavailable("no answer in time", remedy="see its log")
        try:
            with deadline(self._limit_s):
                await made.wait()
                while True:
                    try:
                        await self.ask(lambda connection: connection.getLibVersion())
                    except Unavailable as error:
                        why = error
                        await asyncio.sleep(0.1)
                    else:
                        return
        except TimeoutError:
            raise Unknown(f"libvirt was started and cannot be used: {why.message}", remedy=why.remedy) from None
        finally:
            if made.returncode is None:
                made.kill()

    async def call(self, order: Callable[[libvirt.virConnect], T], limit_s: float | None = None) -> T:
        """What libvirt answers, or libvirtError. ``Unavailable``: it was not asked. ``Unknown``: it did not answer."""
        connection = await self._connect()
        limit_s = self._limit_s if limit_s is None else limit_s
        answer = self._threads.submit(lambda: order(connection))
        try:
            with deadline(limit_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise Unknown(f"libvirt did not answer within {limit_s:g} s", remedy="look what is there") from None
        except libvirt.libvirtError as error:
            if not _is_alive(connection):
                self._drop(connection)
                raise Unknown(f"libvirt went away: {text_of(error)}", remedy="look what is there") from None
            raise

    async def _connect(self) -> libvirt.virConnect:
        if self._connection is not None:
            if _is_alive(self._connection):
                return self._connection
            self._drop(self._connection)
        if self._opening is None:
            self._opening = self._threads.submit(self._open)
            self._opening.add_done_callback(self._keep_connection)
        try:
            with deadline(self._limit_s):
                connection = await asyncio.shield(self._opening)
        except TimeoutError:
            why = f"no answer within {self._limit_s:g} s"
            raise Unavailable(f"libvirt at {self.uri} does not answer: {why}", remedy="see its log") from None
        except libvirt.libvirtError as error:
            raise Unavailable(f"libvirt at {self.uri}: {text_of(error)}", remedy="start it") from None
        await self._watch(connection)
        return connection

    def _keep_connection(self, answer: asyncio.Future[libvirt.virConnect]) -> None:
        self._opening = None
        if not answer.cancelled() and answer.exception() is None:
            self._connection = answer.result()
            _log.info("libvirt.connected", uri=self.uri)

    def _open(self) -> libvirt.virConnect:
        _start_events()
        connection = libvirt.open(self.uri)
        versions = connection.getLibVersion(), connection.getVersion()
        for name, has, needs in zip(("libvirt", "QEMU"), versions, OLDEST, strict=True):
            if has < needs:
                remedy = f"install {name} {_format_version(needs)} or later"
                raise Unavailable(f"{name} {_format_version(has)} is too old", remedy=remedy)
        connection.setKeepAlive(*KEEPALIVE)
        return connection

    async def _watch(self, connection: libvirt.virConnect) -> None:
        """Hear of changes; without that the daemon still looks as often as it is set to."""
        if getattr(connection, "outlive_watched", False):
            return
        connection.outlive_watched = True
        loop = asyncio.get_running_loop()

        def on_event(_: object, domain: libvirt.virDomain, *more: object) -> None:
            name = domain.name()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: self.changed(name))

        register = self._threads.submit(
            lambda: connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, on_event, None)
        )
        with contextlib.suppress(TimeoutError, libvirt.libvirtError), deadline(self._limit_s):
            await asyncio.shield(register)

    def _drop(self, connection: libvirt.virConnect) -> None:
        if self._connection is connection:
            self._connection = None
            _log.warning("libvirt.lost", uri=self.uri)


def text_of(error: libvirt.libvirtError) -> str:
    """libvirt's words, on one line."""
    return " ".join(str(error).split())[:500]


def _is_alive(connection: libvirt.virConnect) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


def _format_version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


_events_lock = threading.Lock()
_events_started = False


def _start_events() -> None:
    """One thread for libvirt's own event loop, which keep-alive messages and events need."""
    global _events_started
    with _events_lock:
        if _events_started:
            return
        libvirt.registerErrorHandler(lambda *_: None, None)
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_events, name="libvirt-events", daemon=True).start()
        _events_started = True


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
