"""How commands are declared: plain functions, sync or async, whose common options are added here.

A parameter of type ``Access`` becomes the options that say where the cluster's state is, one of type ``WriteAccess``
the same without the state file, which is only read, one of type ``Output``
those that say how to print and whether to go on watching, one of type ``ObjectOutput`` those of a list of objects as
well, one of type ``Report`` how to print alone. A command returns its exit code, or ``None`` for yes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from outlive.base import ExitCode
from outlive.cli.access import Access, StoreKind, WriteAccess
from outlive.cli.output import Form, ListForm, ObjectOutput, Output, Report, write
from outlive.cli.parameters import PlainCommand, PlainGroup
from outlive.runtime import FairLoop

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_ACCESS = {
    "state": Annotated[
        Path | None, typer.Option("--state", metavar="FILE", help="Work offline on a state file (see outlive dump).")
    ],
    "state_dir": Annotated[
        Path | None,
        typer.Option(
            "--state-dir", metavar="DIR", envvar="OUTLIVE_STATE_DIR", help="Where outlive up keeps its state."
        ),
    ],
    "server": Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="OUTLIVE_SERVER",
            help="Ask this server instead; of several equal ones a,b.",
        ),
    ],
    "token": Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", envvar="OUTLIVE_TOKEN", help="Token for the server; @FILE reads it."),
    ],
    "fingerprint": Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            metavar="SHA256",
            envvar="OUTLIVE_FINGERPRINT",
            help="Of the server's own authority, as outlive up prints it.",
        ),
    ],
    "insecure": Annotated[
        bool,
        typer.Option("--insecure", envvar="OUTLIVE_INSECURE", help="Send the token over plain HTTP if need be."),
    ],
    "store": Annotated[
        StoreKind | None,
        typer.Option(
            "--store",
            envvar="OUTLIVE_STORE",
            help="kubernetes or zookeeper: ask the API server or the ensemble itself.",
            case_sensitive=False,
        ),
    ],
    "kubeconfig": Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="For --store kubernetes; else KUBECONFIG, a pod's account, ~/.kube/config.",
        ),
    ],
    "context": Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig.")],
    "zookeeper": Annotated[
        str,
        typer.Option(
            "--zookeeper",
            metavar="FILE",
            envvar="OUTLIVE_ZOOKEEPER",
            help="For --store zookeeper: its address; else /etc/outlive/zookeeper.yaml.",
        ),
    ],
}
_WRITE_ACCESS = {name: option for name, option in _ACCESS.items() if name != "state"}
_OUTPUT = {
    "form": Annotated[Form, typer.Option("--output", "-o", help="How to print.", case_sensitive=False)],
    "watch": Annotated[bool, typer.Option("--watch", "-w", help="Print again whenever it changes.")],
}
_LISTING = {
    "form": Annotated[ListForm, typer.Option("--output", "-o", help="How to print.", case_sensitive=False)],
    "watch": _OUTPUT["watch"],
    "no_headers": Annotated[bool, typer.Option("--no-headers", help="Tables without titles.")],
}
_COMMON: dict[type, dict[str, Any]] = {
    Access: _ACCESS,
    WriteAccess: _WRITE_ACCESS,
    Output: _OUTPUT,
    ObjectOutput: _LISTING,
    Report: {"form": _OUTPUT["form"]},
}
INTERRUPT_S = 0.5
"""What an interrupted command has to come to an end by itself."""
WATCH_SECONDS = 2.0
"""Pause between two runs of a command that is watched."""
_CLEAR = "\x1b[H\x1b[2J"
_HELP = {"help_option_names": ["-h", "--help"]}
_DEFAULTS: dict[str, Any] = {
    "form": Form.TABLE,
    "watch": False,
    "insecure": False,
    "no_headers": False,
    "kubeconfig": "",
    "context": "",
    "zookeeper": "",
}


def share_options(kind: type, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Have every parameter of this type become these options: the type is made from their values."""
    _COMMON[kind] = options
    _DEFAULTS.update(defaults)


def command(app: typer.Typer, name: str | None = None, *, raw: bool = False, **settings: Any) -> Callable[[F], F]:
    """Register a function as a command of ``app``. ``raw``: its words are given to it as they are, options too."""
    context = {**_HELP, "ignore_unknown_options": True, "allow_interspersed_args": False} if raw else _HELP

    def register(function: F) -> F:
        app.command(name, cls=PlainCommand, context_settings=context, **settings)(_expand_parameters(function))
        return function

    return register


def make_group(help_text: str) -> typer.Typer:
    """A group of commands; it stays one also while it has a single command."""
    app = _make_typer(help=help_text, no_args_is_help=True)
    app.callback()(_take_no_options)
    return app


class DefaultGroup(PlainGroup):
    """A group whose first command needs no name: ``fence HOST`` is ``fence host HOST``, unless HOST is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With the name of the first command before what names none."""
        if args and args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def default_group(help_text: str) -> typer.Typer:
    """A group whose first command needs no name."""
    app = _make_typer(help=help_text, no_args_is_help=True, cls=DefaultGroup)
    app.callback(cls=DefaultGroup)(_take_no_options)
    return app


def single_command(name: str, function: Callable[..., Any], **settings: Any) -> typer.Typer:
    """An app that is one command."""
    app = _make_typer()
    command(app, name, **settings)(function)
    return app


def _make_typer(cls: type[PlainGroup] = PlainGroup, **settings: Any) -> typer.Typer:
    return typer.Typer(
        cls=cls,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings=_HELP,
        **settings,
    )


def _take_no_options() -> None:
    return


def _expand_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its common parameters taken apart into options."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    parameters: dict[str, inspect.Parameter] = {}
    special: dict[str, type] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if kind in _COMMON:
            special[name] = kind
            for option, annotation in _COMMON[kind].items():
                parameters[option] = _keyword_parameter(option, annotation, _DEFAULTS.get(option))
        else:
            parameters[name] = _keyword_parameter(name, kind, parameter.default)

    @functools.wraps(function)
    def run(**values: Any) -> int | None:
        for name, kind in special.items():
            values[name] = kind(**{option: values.pop(option) for option in _COMMON[kind]})
        answer: int | None
        if not inspect.iscoroutinefunction(function):
            answer = function(**values)
            return answer
        log_little()
        output = next((values[name] for name, kind in special.items() if kind in (Output, ObjectOutput)), None)
        if output is not None and output.watching:
            return asyncio.run(run_interruptible(watch(function, values, output)))
        with asyncio.Runner(loop_factory=FairLoop) as runner:
            answer = runner.run(run_interruptible(function(**values)))
        return answer

    del run.__wrapped__
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _keyword_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


LOG_LEVELS = ("debug", "info", "warning", "error")


def log_little() -> None:
    """Events go to standard error, and only where they are asked for: a command says itself what went wrong.

    Unconfigured, they would go to standard output and into the answer.
    """
    from outlive.base import configure_logging

    wanted = os.environ.get("OUTLIVE_LOG__LEVEL", "").lower()
    configure_logging(level=wanted if wanted in LOG_LEVELS else "critical")


async def watch(function: Callable[..., Any], values: dict[str, Any], output: Output) -> int | None:
    """Repeat the command until Ctrl-C and print whenever its answer changes; on a terminal in place of the last one.

    It ends with the exit code of a command that says that nobody answers.
    """
    last = ""
    while True:
        output.held = []
        code: int | None = await function(**values)
        text, output.held = "".join(output.held), None
        if text != last:
            clear = sys.stdout.isatty() and output.form in (Form.TABLE, Form.WIDE)
            write((_CLEAR if clear else "---\n" if last and output.form is Form.YAML else "") + text)
            last = text
        if code == ExitCode.UNAVAILABLE:
            return code
        await asyncio.sleep(WATCH_SECONDS)


async def run_interruptible(running: Coroutine[Any, Any, T]) -> T:
    """The same, but Ctrl-C also ends a long computation, which gives the event loop no turn to cancel it.

    The loop's own handler cancels the command, so that it can clean up; what goes on all the same is interrupted.
    """
    inner = signal.getsignal(signal.SIGINT)
    if not callable(inner) or not hasattr(signal, "setitimer"):
        return await running

    def handle_interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_S)
        inner(number, frame)

    alarm = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGINT, handle_interrupt)
    try:
        return await running
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        if signal.getsignal(signal.SIGINT) is handle_interrupt:
            signal.signal(signal.SIGINT, inner)
