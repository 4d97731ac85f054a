"""An event loop whose time jumps: hours of timeouts run in milliseconds, and the same way each time.

When nothing is ready, time is the moment of the next timer. ``asyncio.sleep``, ``timeout``, ``wait_for``,
queues, events and locks work as always, because they ask the loop for the time; the ``LoopClock`` of
``outlive.base.clock`` *is* this loop's time. Timers of the same moment fire in the order in which they were set.

There is no outside: a socket, a thread, a child process or a signal would bring in real time, so each is
refused with ``NoOutside``. Where nothing can ever happen again the loop does not hang but raises ``DeadlockError``,
and it has limits for virtual time and for steps. What it does not give: a task that computes takes no time here.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from typing import Any, Final, NoReturn, TypeVar

TIDY_TASKS: Final = 64
"""Tasks of a part that may be kept beyond twice those that have not ended."""


class LoopPart:
    """Some of a loop's tasks that can be halted as a whole, the way ``SIGSTOP`` halts a process.

    A task belongs to the part in whose ``make_context`` it was started, and so do all tasks, timers and callbacks that
    it starts. While a part is halted none of them runs, also when what they wait for comes about; ``go_on`` lets them
    run in the order in which they would have. Time goes on meanwhile. Halts count: as many ``go_on`` are needed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        """In the order of their creation, some that have ended among them."""
        self._tidy_at = TIDY_TASKS
        self.halted = False
        """Whether nothing of it runs."""
        self._halts = 0
        self._waiting: list[asyncio.Handle] = []

    @property
    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """Its tasks that have not ended, in the order of their creation."""
        return tuple(task for each in self._tasks if (task := each()) is not None and not task.done())

    def make_context(self) -> contextvars.Context:
        """A new context that belongs to this part."""
        context = contextvars.copy_context()
        context.run(PART.set, self)
        return context

    def halt(self) -> None:
        """Let nothing of it run."""
        self._halts += 1
        self.halted = True

    def go_on(self) -> None:
        """Take one halt back."""
        self._halts = max(0, self._halts - 1)
        self.halted = self._halts > 0
        if not self.halted:
            waiting, self._waiting = self._waiting, []
            for handle in waiting:
                loop: Any = handle._loop  # type: ignore[attr-defined]
                loop._ready.append(handle)

    def cancel(self, *, besides: asyncio.Task[Any] | None = None) -> None:
        """Cancel all its tasks but one, in the order of their creation."""
        for task in self.tasks:
            if task is not besides:
                task.cancel()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Take in a task that begins; called by the loop."""
        if len(self._tasks) >= self._tidy_at:
            self._tasks = [weakref.ref(each) for each in self.tasks]
            self._tidy_at = TIDY_TASKS + 2 * len(self._tasks)
        self._tasks.append(weakref.ref(task))

    def keep(self, handle: asyncio.Handle) -> None:
        """Take in what would run now."""
        self._waiting.append(handle)


def outside_parts() -> contextvars.Context:
    """A copy of the present context that belongs to no part: for what goes on when the one who began it is halted."""
    context = contextvars.copy_context()
    context.run(PART.set, None)
    return context


PART: Final[contextvars.ContextVar[LoopPart | None]] = contextvars.ContextVar("outlive_part", default=None)
"""The part that what runs now belongs to."""


T = TypeVar("T")

LIMIT_S: Final = 366 * 86400.0
"""Virtual seconds that ``run_virtual`` lets pass, unless asked otherwise."""
STEP_LIMIT: Final = 100_000_000
"""Rounds of the loop, over a whole run, unless asked otherwise."""
STILL_LIMIT: Final = 1_000_000
"""Rounds of the loop without time moving on: more is a task that spins."""
END_S: Final = 3600.0
"""Virtual seconds that cancelled tasks get to end in."""
CANCELLED_KEPT: Final = 1_000
"""Cancelled timers that may stay in the heap."""
SHOWN_TASKS: Final = 20
"""Pending tasks that an error lists."""
CLOSED: Final = "Event loop is closed"


class VirtualTimeError(RuntimeError):
    """The run cannot go on; the program under virtual time is wrong, not its input."""


class DeadlockError(VirtualTimeError):
    """Nothing is ready and no timer is set: every task waits for another."""


class VirtualLimit(VirtualTimeError):
    """More virtual time or more steps than the run may take."""


class NoOutside(VirtualTimeError):
    """Something asked the virtual loop for a socket, a thread, a process or a signal."""


class _Handle(asyncio.Handle):
    """A callback, without what the standard one keeps for debugging."""

    __slots__ = ()
    _repr = None
    _source_traceback = None


class _Timer(asyncio.TimerHandle):
    """A callback with its moment; the loop's heap knows the order in which timers were set."""

    __slots__ = ()
    _repr = None
    _source_traceback = None

    def cancel(self) -> None:
        """As every timer's."""
        mine: Any = self
        if not mine._cancelled:
            mine._cancelled = True
            mine._callback = mine._args = None
            if mine._scheduled:
                mine._loop._timer_handle_cancelled(self)


class _OrderedTask(asyncio.Task[Any]):
    """A task that knows the order in which tasks were begun."""

    __slots__ = ("number",)
    number: int


_new: Final[Callable[[Any], Any]] = object.__new__
"""Makes handles without a call of ``__init__``: a simulation makes millions of them."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop; see the module. ``start`` is its first time, ``limit_s`` how far time may go beyond that."""

    def __init__(self, *, start: float = 0.0, limit_s: float = LIMIT_S, steps: int = STEP_LIMIT) -> None:
        super().__init__()
        self._ready: deque[Any]
        self._closed: bool
        self._stopping: bool
        self._now = start
        self._end = start + limit_s
        self._limit_s = limit_s
        self._steps_left = steps
        self._still = 0
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap; the second number makes timers of one moment fire in the order in which they were set."""
        self._cancelled_timers = 0
        self._count = itertools.count(1)
        self._parts: dict[LoopPart, None] = {}
        """Those that have begun a task."""
        self._generators: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        """Open ones, with the order of their begin."""

    def _begin_end(self) -> None:
        for part in self._parts:
            while part.halted:
                part.go_on()
        # What is left may take an hour and some steps to end after a limit was reached, but not for ever.
        self._end = max(self._end, self._now) + END_S
        self._limit_s += END_S
        self._steps_left = max(self._steps_left, STILL_LIMIT)
        self._still = 0

    def get_debug(self) -> bool:
        """Never: what asyncio looks for then are callbacks that take long, and here nothing takes any time."""
        return False

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def _run_once(self) -> None:
        """One round: time moves if nothing is ready; then all that is ready now runs."""
        ready = self._ready
        self._still += 1
        self._steps_left -= 1
        if self._still > STILL_LIMIT or self._steps_left < 0:
            self._give_up()
        if not ready and not self._stopping:
            self._advance()
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer: Any = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            part = context.get(PART)
            if part is not None and part.halted:
                part.keep(handle)
                continue
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as every loop does: reported to the loop's handler
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
                )

    def _advance(self) -> None:
        """Nothing is ready: it becomes the moment of the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise DeadlockError(
                f"nothing is ready and no timer is set at {self._now:g} s; pending:\n{self.describe_tasks()}"
            )
        when = timers[0][0]
        if when > self._end:
            raise VirtualLimit(
                f"{self._limit_s:g} virtual seconds have passed and the run is not over; pending:\n"
                f"{self.describe_tasks()}"
            )
        if when > self._now:
            self._now = when
            self._still = 0

    def _give_up(self) -> NoReturn:
        if self._steps_left < 0:
            raise VirtualLimit("the run took more steps than it may")
        raise VirtualLimit(
            f"{STILL_LIMIT} steps without time moving on from {self._now:g} s: a task spins; pending:\n"
            f"{self.describe_tasks()}"
        )

    def call_at(  # type: ignore[override]  # the argument types of the callback are not spelled out
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As every loop's; timers of the same moment fire in the order of these calls."""
        if when != when:
            raise ValueError("a timer needs a moment, not NaN")
        if self._closed:
            raise RuntimeError(CLOSED)
        timer = _new(_Timer)
        timer._callback, timer._args, timer._loop = callback, args, self
        timer._context = contextvars.copy_context() if context is None else context
        timer._cancelled = False
        timer._when, timer._scheduled = when, True
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer  # type: ignore[no-any-return]

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As every loop's."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As every loop's."""
        if self._closed:
            raise RuntimeError(CLOSED)
        handle = _new(_Handle)
        handle._callback, handle._args, handle._loop = callback, args, self
        handle._context = contextvars.copy_context() if context is None else context
        handle._cancelled = False
        self._ready.append(handle)
        return handle  # type: ignore[no-any-return]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Timers that were cancelled stay in the heap until they are many: most time limits are never reached."""
        self._cancelled_timers += 1
        if self._cancelled_timers > CANCELLED_KEPT and 2 * self._cancelled_timers > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """As every loop's; a task without a name is named by its number in this loop, not in the process."""
        number = next(self._count)
        if options.get("name") is None:
            options["name"] = f"task-{number}"
        task = _OrderedTask(coro, loop=self, **options)
        task.number = number
        context: contextvars.Context | None = options.get("context")
        part = PART.get() if context is None else context.get(PART)
        if part is not None:
            self._parts[part] = None
            part.add(task)
        return task

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that are not done, in the order of their creation."""
        return sorted(asyncio.all_tasks(self), key=lambda task: getattr(task, "number", 0))

    def describe_tasks(self) -> str:
        """One line for each pending task: its name and the line at which it waits."""
        return describe_pending(self.pending_tasks())

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._generators[agen] = next(self._count)
        base: Any = super()
        base._asyncgen_firstiter_hook(agen)

    async def shutdown_asyncgens(self) -> None:
        """Close all open asynchronous generators, in the order in which they were begun."""
        mine: Any = self
        mine._asyncgens_shutdown_called = True
        begun = sorted(mine._asyncgens, key=lambda agen: self._generators.get(agen, 0))
        mine._asyncgens.clear()
        for agen in begun:
            try:
                await agen.aclose()
            except Exception as error:  # noqa: BLE001 - reported, and the others must be closed as well
                self.call_exception_handler(
                    {"message": f"closing {agen!r} failed", "exception": error, "asyncgen": agen}
                )

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no events from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody is to be woken."""


def _make_refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *args: Any, **options: Any) -> NoReturn:
        raise NoOutside(
            f"{name} is not possible under virtual time: it would wait for the real world, which has no part in it; "
            f"put the call behind a port and hand in a simulated driver, or run this on a real loop"
        )

    refuse.__name__ = name
    return refuse


for _name in (
    *("add_reader", "add_writer", "add_signal_handler", "run_in_executor", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
    *("connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "start_tls", "sendfile"),
    *("subprocess_exec", "subprocess_shell", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into"),
    *("sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_sendfile"),
):
    setattr(VirtualLoop, _name, _make_refusal(_name))


def run_virtual(
    coro: Coroutine[Any, Any, T], *, start: float = 0.0, limit_s: float = LIMIT_S, steps: int = STEP_LIMIT
) -> T:
    """Run ``coro`` on a virtual loop of its own and return its result.

    Whatever it leaves behind is cancelled in the order of creation. An error in a task or callback that nobody
    awaited is not lost: it is raised, in an exception group, when ``coro`` itself ended well.
    Raises ``DeadlockError``, ``VirtualLimit``, ``NoOutside``, and whatever ``coro`` raises.
    """
    loop = VirtualLoop(start=start, limit_s=limit_s, steps=steps)
    lost: list[BaseException] = []

    def keep(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            error.add_note(str(context.get("message", "")))
            lost.append(error)
        else:
            _loop.default_exception_handler(context)

    loop.set_exception_handler(keep)
    try:
        result: T = loop.run_until_complete(loop.create_task(coro, name="main"))
    finally:
        try:
            _finish(loop)
        finally:
            loop.close()
    if lost:
        raise BaseExceptionGroup("errors that nobody awaited", lost)
    return result


def _finish(loop: VirtualLoop) -> None:
    """Cancel what is left, in order, and close open generators; a task that will not end is an error of its own."""
    loop._begin_end()
    left = loop.pending_tasks()
    for task in left:
        task.cancel()
    for task in left:
        if not task.done():
            loop.run_until_complete(asyncio.wait([task]))
    for task in left:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler(
                {"message": f"{task.get_name()} failed while it was cancelled", "exception": error}
            )
    loop.run_until_complete(loop.shutdown_asyncgens())


def describe_pending(pending: Sequence[asyncio.Task[Any]]) -> str:
    """One line for each task, at most ``SHOWN_TASKS``: its name and the line at which it waits."""
    lines = [f"  {task.get_name()}: {_waits_at(task.get_coro())}" for task in pending[:SHOWN_TASKS]]
    if len(pending) > SHOWN_TASKS:
        lines.append(f"  … and {len(pending) - SHOWN_TASKS} more")
    return "\n".join(lines) or "  no task"


def _waits_at(coro: object) -> str:
    """The innermost frame of a suspended coroutine, as ``file:line in function``."""
    frame, name = None, getattr(coro, "__qualname__", repr(coro))
    while isinstance(coro, Coroutine | Generator) or hasattr(coro, "cr_await"):
        current = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if current is None:
            break
        frame = current
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    if frame is None:
        return str(name)
    return f"{name}, at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
