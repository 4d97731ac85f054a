"""Ends the servers of a folder when the process that started it is gone, however that ended: its input ends then.

The servers run in sessions of their own and are started from threads, so that no signal of the kernel reaches them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from lab.processes import Process


def guard_folder(folder: Path) -> subprocess.Popen[bytes]:
    """A process that does this from now on; it ends when its input is closed."""
    command = [sys.executable, "-m", "tests.support.ensemble_guardian", str(folder)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd=root)


def end_servers(folder: Path) -> None:
    """End those whose numbers the folder remembers, and remove it."""
    for file in folder.glob("*/server.pid"):
        server = Process(file)
        server.signal(signal.SIGCONT)
        server.kill()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_servers(Path(sys.argv[1]))
