"""How an error looks to a user: one line on standard error with the place and the remedy, and an exit code.

A traceback is shown only with ``--debug``. What nobody foresaw is an internal error: one line as well, and the
exit code of an unknown outcome, because it is neither a yes nor a no.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from outlive.base import ExitCode, OutliveError, leaf_errors

ISSUES = "run it again with --debug and report what it prints"


def take_debug(arguments: list[str]) -> bool:
    """Whether tracebacks are wanted: by ``--debug`` before any ``--``, which is taken out, or by the environment."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    places = [index for index, argument in enumerate(arguments[:end]) if argument == "--debug"]
    for index in reversed(places):
        del arguments[index]
    return bool(places) or os.environ.get("OUTLIVE_DEBUG", "") not in ("", "0")


def report(error: BaseException, debug: bool) -> int:
    """Print what went wrong; returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(ExitCode.YES if error.code is None else ExitCode.NO)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    # of a group or a chain the first error of ours, else the error itself
    leaves = list(leaf_errors(error))
    found = next((leaf for leaf in leaves if isinstance(leaf, OutliveError | KeyboardInterrupt)), leaves[0])
    code: int
    if isinstance(found, OutliveError):
        code, lines = found.exit_code, _error_lines(found)
    elif isinstance(found, KeyboardInterrupt | typer.Abort):
        code, lines = ExitCode.INTERRUPTED, []
    elif hasattr(found, "format_message") and hasattr(found, "exit_code"):
        code, lines = _explain_usage(found)
    elif isinstance(found, OSError):
        code, lines = _explain_system(found)
    else:
        what = to_one_line(f"{type(found).__name__}: {found}")
        code, lines = ExitCode.UNAVAILABLE, [f"outlive: internal error: {what} ({ISSUES})"]
    for line in lines:
        print(line, file=sys.stderr)
    return int(code)


def to_one_line(text: str) -> str:
    """The text without line breaks and control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _error_lines(error: OutliveError) -> list[str]:
    problems = getattr(error, "problems", None)
    if not problems:
        return [to_one_line(f"outlive: {error}")]
    lines = [to_one_line(f"outlive: {problem}") for problem in problems]
    more = error.total - len(problems) if hasattr(error, "total") else 0
    return [*lines, f"outlive: and {more} more problems"] if more else lines


def _explain_usage(error: BaseException) -> tuple[int, list[str]]:
    """What the parser of the command line says, on one line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(str(getattr(error, "message", "")))
        return ExitCode.USAGE, []
    message = to_one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "outlive"
    return ExitCode.USAGE, [f"{command}: {message} (see {command} --help)"]


def _explain_system(error: OSError) -> tuple[int, list[str]]:
    what = to_one_line(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return ExitCode.UNAVAILABLE, [f"outlive: {what} (free some space and repeat)"]
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ExitCode.FORBIDDEN, [f"outlive: {what} (check owner and mode, or choose another place)"]
        case errno.ENOENT:
            return ExitCode.NOT_FOUND, [f"outlive: {what} (check the path)"]
        case _:
            return ExitCode.UNAVAILABLE, [f"outlive: {what} (repeat, or run with --debug)"]
