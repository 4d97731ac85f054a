"""Logs are events with fields, and carry the request ids of the work that they belong to.

``greq`` is the id of the whole run (a cycle, a reconcile, a request's own global id), ``req`` that of
one step in it (one VM). Both live in context variables, so that everything a task starts inherits
them, and both are the empty string where nobody set them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal, cast

import structlog

from outlive.base.ids import Ids

_global_request: ContextVar[str] = ContextVar("outlive_global_request", default="")
_request: ContextVar[str] = ContextVar("outlive_request", default="")

Logger = structlog.typing.FilteringBoundLogger


def get_logger(name: str) -> Logger:
    """A logger whose events carry ``logger=name``."""
    return cast("Logger", structlog.get_logger(logger_name=name))


def global_request_id() -> str:
    """The id of the whole run, or the empty string."""
    return _global_request.get()


def request_id() -> str:
    """The id of this step, or the empty string."""
    return _request.get()


@contextlib.contextmanager
def request_context(*, greq: str | None = None, req: str | None = None) -> Iterator[None]:
    """Everything inside runs under these ids; ``None`` keeps what is there."""
    before = (_global_request.get(), _request.get())
    if greq is not None:
        _global_request.set(greq)
    if req is not None:
        _request.set(req)
    try:
        yield
    finally:
        _global_request.set(before[0])
        _request.set(before[1])


def new_global_request_id(ids: Ids, prefix: str) -> str:
    """``<prefix>-<uuid4>``."""
    return f"{prefix}-{ids.uuid()}"


def _add_request_ids(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["greq"] = _global_request.get()
    event["req"] = _request.get()
    return event


def _name_logger(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """``logger`` itself is the name of a parameter in structlog."""
    if "logger_name" in event:
        event["logger"] = event.pop("logger_name")
    return event


def configure_logging(*, level: str = "info", form: Literal["console", "json"] = "console") -> None:
    """Send all events to standard error, as text for people or one JSON document a line."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _name_logger,
            _add_request_ids,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Nothing inside is logged, whatever was configured: for programs that run in a simulation."""
    before = structlog.get_config()
    structlog.configure(
        processors=[_drop],
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: Any, _method: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
