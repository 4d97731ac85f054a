"""A backup of 100,000 VMs while the server writes, how long it holds the event loop, and how soon everything is covered
again after a restore.

The state is imported and planned by commands; labels of hosts change meanwhile, one after the other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.figures import Figure
from outlive.base import SystemClock, SystemIds
from outlive.drivers import BackupSource, write_backup
from outlive.resources import Hypervisor
from outlive.store.sqlite import SqliteStore

VMS, HOSTS, ZONES = 100_000, 5_000, 3
PAUSE_S = 0.002
"""Between two beats of the event loop."""
COMMAND = [sys.executable, "-m", "outlive"]
COVERED = " by "
"""In the line that says how many slots cover the VMs, which comes last."""


def measure() -> list[Figure]:
    """Make the state, back it up, put it back, and start a server on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state, file = folder / "state", folder / "b.tar"
        _fill(folder, state)
        seconds, writes, longest_ms = asyncio.run(_back_up(state, file))
        started = time.perf_counter()
        _run("restore", str(file), "--state-dir", str(folder / "new"))
        restored = time.perf_counter() - started
        covered = _covered_seconds(folder / "new")
        note = f"{file.stat().st_size / 2**20:,.0f} MiB, {writes} writes meanwhile"
        return [
            Figure(f"backup of {VMS:,} VMs while the server writes", seconds, "s", 20.0, note=note),
            Figure("longest turn of the event loop meanwhile", longest_ms, "ms"),
            Figure(f"restore of {VMS:,} VMs", restored, "s"),
            Figure(f"{VMS:,} VMs restored, served and covered", restored + covered, "s", 60.0),
        ]


def _fill(folder: Path, state: Path) -> None:
    hosts = [f"h{n},64,512Gi,z{n % ZONES}" for n in range(HOSTS)]
    vms = [f"v{n},v{n},1,4Gi,h{n % HOSTS},p{n % 100}" for n in range(VMS)]
    (folder / "hosts.csv").write_text("\n".join(["name,cpu,memory,zone", *hosts]) + "\n")
    (folder / "vms.csv").write_text("\n".join(["id,name,cpu,memory,host,project", *vms]) + "\n")
    files = ("--hosts", str(folder / "hosts.csv"), "--vms", str(folder / "vms.csv"))
    _run("import", "csv", *files, "--state-dir", str(state))
    _run("failover", "plan", "--apply", "--state-dir", str(state))
    _covered_seconds(state)  # a cluster that has run: what covers each VM is in its store


def _run(*words: str) -> None:
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL, timeout=900)


async def _back_up(state: Path, file: Path) -> tuple[float, int, float]:
    """Seconds, writes meanwhile, and the longest turn of the loop in ms, in the process that has the store."""
    store = await SqliteStore.open(state, clock=SystemClock(), ids=SystemIds())
    done, writes, longest = asyncio.Event(), 0, 0.0

    async def write() -> None:
        nonlocal writes
        while not done.is_set():
            host = await store.get(Hypervisor, f"h{writes % HOSTS}")
            meta = msgspec.structs.replace(host.metadata, labels={**host.metadata.labels, "count": f"{writes}"})
            await store.replace(msgspec.structs.replace(host, metadata=meta))
            writes += 1

    async def beat() -> None:
        nonlocal longest
        while not done.is_set():
            before = time.perf_counter()
            await asyncio.sleep(PAUSE_S)
            longest = max(longest, time.perf_counter() - before - PAUSE_S)

    others = [asyncio.create_task(write()), asyncio.create_task(beat())]
    started = time.perf_counter()
    source = BackupSource(state, None, os.uname().nodename, "bench", None)
    await asyncio.to_thread(write_backup, source, file, SystemClock())
    seconds = time.perf_counter() - started
    done.set()
    await asyncio.gather(*others)
    await store.close()
    return seconds, writes, longest * 1000


def _covered_seconds(state: Path) -> float:
    """From the start of a server until it says that every VM was looked at."""
    started = time.perf_counter()
    words = ["up", "--listen", "127.0.0.1:0", "--state-dir", str(state)]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "covered" + COVERED in line:
                return time.perf_counter() - started
        raise RuntimeError("outlive up ended before it had looked at every VM")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
