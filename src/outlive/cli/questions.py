"""Questions that a command asks before it does what cannot be undone.

One rule for all of them (docs/reference/cli.md#questions): ``--yes`` answers; without it a terminal is asked, and where
there is none the command does nothing and exits with 2.
"""

from __future__ import annotations

import sys

from outlive.base import Refused, Usage

AGREED = ("y", "yes")


def ask(question: str, yes: bool) -> None:
    """Return if somebody agrees; ``Refused`` if not, ``Usage`` where nobody can."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage("this asks before it acts, and nobody is there to answer", remedy="give --yes")
    sys.stderr.write(f"{question} [yes/no] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in AGREED:
        raise Refused("nothing was done", remedy="answer yes, or give --yes")
