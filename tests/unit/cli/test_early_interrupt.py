"""Ctrl-C while the command is still loading ends it without a traceback."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import builtins, sys
inner = builtins.__import__
def importing(name, *rest, **more):
    if name == {interrupted!r}:
        raise KeyboardInterrupt
    return inner(name, *rest, **more)
from outlive.__main__ import main
builtins.__import__ = importing
sys.argv = ["outlive", {command!r}]
sys.exit(main())
"""


def test_an_interrupt_while_modules_are_imported_is_quiet() -> None:
    for interrupted, command in (("outlive.cli.main", "status"), ("outlive.guard.main", "guard")):
        script = SCRIPT.format(interrupted=interrupted, command=command)
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
