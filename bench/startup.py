"""How long it takes until ``outlive up`` is ready with the example inventory, and until help is on the screen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, median_seconds

RUNS = 5
_COMMAND = [sys.executable, "-m", "outlive"]


def _environment() -> dict[str, str]:
    """As a user has it: compiled modules are kept."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def help_seconds() -> float:
    """One ``outlive --help``, from the start of the process to its end."""

    def run() -> None:
        subprocess.run([*_COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL, env=_environment())

    return median_seconds(run, runs=7)


def get_seconds(directory: Path) -> float:
    """One ``outlive get vms`` of the 600 VMs of a running server, from the start of the process to its end."""
    command = [*_COMMAND, "up", "--example", "--listen", "127.0.0.1:0", "--state-dir", str(directory)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment())

    def run() -> None:
        get = [*_COMMAND, "get", "vms", "--state-dir", str(directory)]
        subprocess.run(get, check=True, stdout=subprocess.DEVNULL, env=_environment())

    try:
        assert server.stdout is not None
        if not any("by" in line and "ready on" in line for line in server.stdout):
            raise RuntimeError("outlive up ended before every VM was looked at")
        return median_seconds(run, runs=7)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def up_seconds(directory: Path) -> float:
    """From the start of the process until it says that it is ready."""
    started = time.perf_counter()
    command = [*_COMMAND, "up", "--example", "--listen", "127.0.0.1:0", "--state-dir", str(directory)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment()
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "ready on" in line:
                return time.perf_counter() - started
        raise RuntimeError("outlive up ended before it was ready")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def measure() -> list[Figure]:
    """First start with an import, a later start on the same state, and help."""
    first: list[float] = []
    later: list[float] = []
    for number in range(RUNS + 1):
        with tempfile.TemporaryDirectory() as folder:
            times = up_seconds(Path(folder)), up_seconds(Path(folder))
        if number:
            first.append(times[0])
            later.append(times[1])
    with tempfile.TemporaryDirectory() as folder:
        got = get_seconds(Path(folder))
    return [
        Figure("outlive get vms, 600 VMs, from a running server", got, "s", 0.25),
        Figure("outlive up ready, example inventory, first start (with import)", sorted(first)[RUNS // 2], "s", 2.0),
        Figure("outlive up ready, example inventory, later start", sorted(later)[RUNS // 2], "s", 2.0),
        Figure("outlive --help", help_seconds(), "s", 0.3),
    ]
