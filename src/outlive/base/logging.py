"""Logs are events with fields, and carry the request ids of the work that they belong to.

``greq`` is the id of the whole run (a cycle, a reconcile, a request's own global id), ``req`` that of
one step in it (one VM). Both live in context variables, so that everything a task starts inherits
them, and both are the empty string where nobody set them.

structlog is imported when the first event is written: a command that logs nothing starts without it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, cast

from outlive.base.clock import Clock, SystemClock
from outlive.base.ids import Ids
from outlive.base.text import escape_controls

if TYPE_CHECKING:
    import structlog

    Logger = structlog.typing.FilteringBoundLogger

_global_request: ContextVar[str] = ContextVar("outlive_global_request", default="")
_request: ContextVar[str] = ContextVar("outlive_request", default="")

REPEAT_S: Final = 3600.0
"""How often a condition that goes on is logged."""
GAP_S: Final = 600.0
"""A condition that was not met for so long has ended."""
CONDITIONS_LIMIT: Final = 1_000
"""Conditions that are remembered."""
DEFECTS_LIMIT: Final = 20
"""Defects that are gathered."""
DEFECT_LINES: Final = 4
"""Of the trace of each."""


class Defect(NamedTuple):
    """An error that nobody foresaw, and that a program caught at its outermost, logged, and went on after."""

    event: str
    error: str
    trace: str


def get_logger(name: str) -> Logger:
    """A logger whose events carry ``logger=name``."""
    return cast("Logger", _NamedLogger(name))


class _NamedLogger:
    """A logger that is configured when it is used; while all is silent an event costs next to nothing."""

    __slots__ = ("_logger", "_name")
    silent = False
    pending: tuple[int, Callable[[], None]] | None = None
    """The lowest level that is written and what configures structlog for it, until an event needs it."""
    defects: list[Defect] | None = None
    """Where errors that nobody foresaw are gathered, while somebody asks for them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, name: str) -> Any:
        if name == "exception" and _NamedLogger.defects is not None:
            return self._gather
        if name in _LEVELS and (
            _NamedLogger.silent or (_NamedLogger.pending is not None and _LEVELS[name] < _NamedLogger.pending[0])
        ):
            return _say_nothing
        return getattr(self._get_logger(), name)

    def _get_logger(self) -> Any:
        """structlog's logger of this name; configures structlog where that waits."""
        if _NamedLogger.pending is not None:
            (_, configure), _NamedLogger.pending = _NamedLogger.pending, None
            configure()
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(logger_name=self._name)
        return self._logger

    def _gather(self, event: str, **fields: Any) -> None:
        if _NamedLogger.defects is not None and len(_NamedLogger.defects) < DEFECTS_LIMIT:
            error = sys.exc_info()[1]
            trace = "".join(traceback.format_exception(error)[-DEFECT_LINES:])
            _NamedLogger.defects.append(Defect(event, repr(error), trace))
        if not _NamedLogger.silent:
            self._get_logger().exception(event, **fields)


_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}


def _say_nothing(_event: str, *_values: Any, **_fields: Any) -> None:
    """In the place of each level."""


def global_request_id() -> str:
    """The id of the whole run, or the empty string."""
    return _global_request.get()


def request_id() -> str:
    """The id of this step, or the empty string."""
    return _request.get()


class request_context:  # noqa: N801 - reads as the function that it stands for
    """Everything inside runs under these ids; ``None`` keeps what is there."""

    __slots__ = ("_before", "_greq", "_req")

    def __init__(self, *, greq: str | None = None, req: str | None = None) -> None:
        self._greq, self._req = greq, req

    def __enter__(self) -> None:
        self._before = (_global_request.get(), _request.get())
        if self._greq is not None:
            _global_request.set(self._greq)
        if self._req is not None:
            _request.set(self._req)

    def __exit__(self, *_: object) -> None:
        _global_request.set(self._before[0])
        _request.set(self._before[1])


def new_global_request_id(ids: Ids, prefix: str) -> str:
    """``<prefix>-<uuid4>``."""
    return f"{prefix}-{ids.new_uuid()}"


def _add_request_ids(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["greq"] = _global_request.get()
    event["req"] = _request.get()
    return event


def _name_logger(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """``logger`` itself is the name of a parameter in structlog."""
    if "logger_name" in event:
        event["logger"] = event.pop("logger_name")
    return event


class Repeats:
    """Drops warnings and errors that say again what was said a moment ago: a condition that goes on is logged when it
    begins and then once every ``REPEAT_S``, with the number of times that it was met in between.

    Two events are of the same condition if they differ in nothing but durations (fields that end in ``_s``), counts and
    request ids. One that was not met for ``GAP_S`` begins anew.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._conditions: OrderedDict[tuple[str, ...], _Condition] = OrderedDict()

    def __call__(self, _logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Structlog's processor."""
        if event.get("level") not in ("warning", "error", "critical"):
            return event
        now = self._clock.monotonic()
        key = tuple(f"{name}={_shorten(value)}" for name, value in sorted(event.items()) if not _varies(name))
        known = self._conditions.pop(key, None)
        self._conditions[key] = known if known is not None and now - known.met < GAP_S else _Condition(now)
        if len(self._conditions) > CONDITIONS_LIMIT:
            self._conditions.popitem(last=False)
        condition = self._conditions[key]
        condition.met = now
        if condition is known and now - condition.logged < REPEAT_S:
            from structlog import DropEvent

            condition.dropped += 1
            raise DropEvent
        if condition.dropped:
            event["repeated"] = condition.dropped
        condition.logged, condition.dropped = now, 0
        return event


@dataclass(slots=True)
class _Condition:
    met: float
    logged: float = 0.0
    dropped: int = 0


def _varies(name: str) -> bool:
    """Whether a field may differ between two events of one condition."""
    return name.endswith("_s") or name in ("count", "writes", "attempts", "failures")


def _shorten(value: object) -> str:
    error = sys.exc_info()[1] if value is True else None
    return repr(error if error is not None else value)[:200]


class _Output:
    """Standard error, or a file. A line that cannot be written, for example on a full disk, is lost; the process goes
    on."""

    def __init__(self) -> None:
        self.copy: Callable[[str], None] | None = None
        """Gets what is written as well."""
        self._path = ""
        self._file: TextIO | None = None

    def use(self, path: str) -> None:
        """Write to this file from now on, opened anew; empty: to standard error. ``OSError`` where it does not open."""
        file = open(path, "a", encoding="utf-8", buffering=1) if path else None  # noqa: PTH123, SIM115 - stays open
        before, self._file, self._path = self._file, file, path
        if before is not None:
            with contextlib.suppress(OSError):
                before.close()

    def reopen(self) -> None:
        """The same file anew, after somebody has moved it away; the old one goes on where it cannot be opened."""
        with contextlib.suppress(OSError):
            self.use(self._path)

    def write(self, text: str) -> None:
        if self.copy is not None:
            self.copy(text)
        with contextlib.suppress(OSError):
            (self._file or sys.stderr).write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            (self._file or sys.stderr).flush()


_output: Final = _Output()


def copy_log(to: Callable[[str], None] | None) -> None:
    """Give whatever is logged to ``to`` as well, line ends apart. Any thread calls it; it must not block, nor log."""
    _output.copy = to


def reopen_log() -> None:
    """Open the log's file anew, as after it was rotated; nothing for standard error."""
    _output.reopen()


def configure_logging(*, level: str = "info", form: Literal["console", "json"] = "console", file: str = "") -> None:
    """Send all events to a file, or to standard error, as text for people or one JSON document a line.

    ``OSError`` where the file cannot be opened.
    """
    _output.use(file)
    configure = partial(_configure_structlog, level, form)
    if "structlog" in sys.modules:
        _NamedLogger.pending = None
        configure()
    else:
        _NamedLogger.pending = (logging.getLevelNamesMapping()[level.upper()], configure)


def _configure_structlog(level: str, form: Literal["console", "json"]) -> None:
    import structlog

    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _name_logger,
            Repeats(SystemClock()),
            _add_request_ids,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([] if form == "json" else [_show_visibly]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _output)),
        cache_logger_on_first_use=False,
    )


def _show_visibly(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """What a request or a peer brought into an event steers no terminal; JSON writes it out by itself."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if name == "exception" else [value]
            event[name] = "\n".join(escape_controls(line) for line in lines)
    return event


@contextlib.contextmanager
def silence_logging() -> Iterator[None]:
    """Nothing inside is logged, whatever was configured: for programs that run in a simulation."""
    import structlog

    before, was_silent = structlog.get_config(), _NamedLogger.silent
    _NamedLogger.silent = True
    structlog.configure(
        processors=[_drop],
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        _NamedLogger.silent = was_silent


@contextlib.contextmanager
def gather_defects() -> Iterator[list[Defect]]:
    """What is logged as an exception inside, at most ``DEFECTS_LIMIT``; it is still logged, unless all is silenced."""
    before, _NamedLogger.defects = _NamedLogger.defects, []
    try:
        yield _NamedLogger.defects
    finally:
        _NamedLogger.defects = before


def _drop(_logger: Any, _method: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    from structlog import DropEvent

    raise DropEvent
