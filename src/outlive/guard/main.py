"""``outlive guard``: reads the command line, takes what the guard needs to run undisturbed, and runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from outlive.guard import address, privileges
from outlive.guard.errors import UNAVAILABLE, YES, GuardError
from outlive.guard.journal import Journal
from outlive.guard.options import Options, read
from outlive.guard.process import Guard


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
            ("memory-lock", privileges.lock_memory()),
            ("priority", privileges.take_priority()),
            ("memory-need", privileges.stay_in_memory_need()),
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
