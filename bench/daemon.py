"""The daemon of a host with 50 VMs on a real libvirt: memory, processor at rest, renewals while libvirt hangs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from lab.processes import until
from lab.single import Single

from bench.figures import Figure

VMS = 50
REST_S = 60.0
HANG_S = 60.0
NOISE = 0.97
"""How much the pace may differ on a machine that does other things as well."""


def measure() -> list[Figure]:
    """Needs root, libvirt and QEMU; nothing where they are missing."""
    if os.geteuid() != 0 or not Path("/usr/sbin/libvirtd").exists():
        print("daemon: needs root, libvirtd and QEMU", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(dir=os.environ.get("OUTLIVE_BENCH_DIR")) as folder:
        single = Single(Path(folder))
        try:
            single.start()
            return _measured(single)
        finally:
            single.stop()


def _measured(single: Single) -> list[Figure]:
    began = time.monotonic()
    single.add_vms(VMS)
    until(lambda: single.outlive("get", "hypervisorusages", "host-1")["usage"].get("running") == VMS, "all run", 400, 2)
    started_s = time.monotonic() - began
    time.sleep(20)
    used_s, began, before = single.processor_s(), time.monotonic(), single.record()["seq"]
    time.sleep(REST_S)
    rested_s = time.monotonic() - began
    share = 100 * (single.processor_s() - used_s) / rested_s
    pace = (single.record()["seq"] - before) / rested_s
    memory = single.memory_mib()
    lost = _lost_renewals(single, pace)
    return [
        Figure("daemon with 50 domains: resident memory", memory, "MiB", 90),
        Figure("daemon with 50 domains: processor at rest", share, "% of a core", 2),
        Figure("renewals missed while libvirt hangs 60 s", lost, "", 0),
        Figure("50 VMs without a system, all started", started_s, "s"),
    ]


def _lost_renewals(single: Single, pace: float) -> float:
    """How many fewer were acknowledged than at rest in the same time, and how many failed."""
    libvirtd = single.libvirtd.pid
    failed = len(single.events("membership.not_renewed"))
    before, began = single.record()["seq"], time.monotonic()
    os.kill(libvirtd, signal.SIGSTOP)
    try:
        time.sleep(HANG_S)
        seen, passed_s = single.record()["seq"] - before, time.monotonic() - began
    finally:
        os.kill(libvirtd, signal.SIGCONT)
    fewer = max(0, int(pace * passed_s * NOISE) - seen)
    return float(fewer + len(single.events("membership.not_renewed")) - failed)
