"""Stopping and starting the hypervisor service: one child process at a time, with a limit, never waited for.

The guard must go on killing and judging while ``systemctl`` waits for something that hangs, so the child is only
looked at, once a turn. A child that outlives its limit is killed and has failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

COMMAND_LIMIT_S: Final = 10.0
"""After which a command has failed."""

IGNORED_HERE: Final = (signal.SIGPIPE, signal.SIGHUP)
"""Signals that the guard ignores and a command must not."""


class Runner:
    """Runs one command; a later one replaces an earlier one."""

    def __init__(self) -> None:
        self._pid = 0
        self._deadline_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._pid > 0

    def start(self, command: tuple[str, ...], now: float) -> bool:
        """Start it; ``False`` where it cannot be started."""
        self._kill()
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        try:
            self._pid = os.posix_spawnp(
                command[0], command, os.environ, file_actions=[null], setpgroup=0, setsigdef=IGNORED_HERE
            )
        except OSError:
            return False
        self._deadline_s = now + COMMAND_LIMIT_S
        with contextlib.suppress(OSError), open(f"/proc/{self._pid}/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("0")
        return True

    def ended(self, now: float) -> bool | None:
        """Whether the command ended well; ``None`` while it runs or where none does."""
        if not self.busy:
            return None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._pid = 0
            return os.waitstatus_to_exitcode(status) == 0
        if now < self._deadline_s:
            return None
        self._kill()
        return False

    def _kill(self) -> None:
        """End what runs. A child that cannot die yet is left to the kernel."""
        if self.busy:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(self._pid, os.WNOHANG)
            self._pid = 0
