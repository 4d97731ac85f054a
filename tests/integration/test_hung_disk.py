"""A guest whose disk hangs: its process ends by no signal, and neither driver nor guard calls it gone before it is.

The disk is a file of a FUSE server that is stopped in the middle of a write: the kernel then keeps the writer in state
D, killed or not, as it does over dead network storage.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.processes import until
from tests.support.loops import run_real

from outlive.drivers.libvirt import GuestProcess, Processes, format_mark, kill
from outlive.guard import cgroups

UNIFIED = next((one for one in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if cgroups.is_version_2(one)), "")
WRITES = "import os, sys\nwhile True: os.pwrite(3, b'x' * 4096, 0)"
needs = pytest.mark.skipif(
    os.geteuid() != 0 or not UNIFIED or shutil.which("qemu-storage-daemon") is None or not Path("/dev/fuse").exists(),
    reason="needs root, cgroup v2, FUSE and qemu-storage-daemon",
)


def state(pid: int) -> str:
    """What the process is doing; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[tuple[Path, int]]:
    """A disk, and the number of the process that serves it."""
    image, shown = folder / "image", folder / "disk"
    image.write_bytes(bytes(1 << 20))
    shown.touch()
    export = f"type=fuse,id=e,node-name=n,mountpoint={shown},writable=on"
    blockdev = f"driver=file,filename={image},node-name=n"
    server = subprocess.Popen(["qemu-storage-daemon", "--blockdev", blockdev, "--export", export])
    try:
        until(lambda: f" {shown} fuse" in Path("/proc/mounts").read_text(), "the disk is there", 30)
        yield shown, server.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
        server.terminate()
        server.wait()


@contextlib.contextmanager
def group(name: str) -> Iterator[Path]:
    """A cgroup of the guests, and that of one of them in it, as systemd and libvirt make them."""
    root = Path(UNIFIED, f"outlive-{name}-{os.getpid()}")
    own = root / "machine-qemu\\x2d1\\x2dweb.scope" / "libvirt" / "emulator"
    own.mkdir(parents=True)
    try:
        yield root
    finally:
        for folder in (own, own.parent, own.parent.parent, root):
            until(lambda folder=folder: "populated 0" in (folder / cgroups.EVENTS).read_text(), "it is empty", 30)
            folder.rmdir()


@needs
def test_a_guest_that_hangs_over_its_disk_is_gone_for_nobody_before_the_kernel_let_it_go(tmp_path: Path) -> None:
    with group("hung") as root, contextlib.ExitStack() as stack, disk(tmp_path) as (shown, server):
        words = [sys.executable, "-c", WRITES, "-chardev", f"socket,id={format_mark('web', 'r1', 7)},path=/q"]
        with shown.open("r+b", buffering=0) as file:
            at_three = f'exec 3<>{file.name}; echo $$ >"$0/cgroup.procs"; exec "$@"'
            where = str(next(root.glob("*/*/emulator")))
            guest = subprocess.Popen(["sh", "-c", at_three, where, *words])
            stack.callback(guest.kill)
        command = Path(f"/proc/{guest.pid}/cmdline")
        until(lambda: command.read_bytes().startswith(sys.executable.encode()), "the guest runs", 30)
        scan = Processes(str(root))

        def seen() -> list[GuestProcess]:
            return [one for one in scan.scan() if one.pid == guest.pid]

        (found,) = seen()
        assert (found.vm, found.guarded, Path(found.group).name) == ("web", True, "machine-qemu\\x2d1\\x2dweb.scope")
        os.kill(server, signal.SIGSTOP)
        until(lambda: "request_wait_answer" in Path(f"/proc/{guest.pid}/wchan").read_text(), "it waits", 30)

        async def killed(limit_s: float) -> bool:
            return await kill(found, limit_s)

        assert not run_real(killed(1.0)), "its disk hangs"
        assert state(guest.pid) == "D"
        assert [(one.vm, one.run_id) for one in seen()] == [("web", "r1")]
        assert cgroups.kill(str(root)).left >= 1, "nor does the guard call it gone: it stops feeding the watchdog"
        os.kill(server, signal.SIGCONT)
        assert run_real(killed(10.0))
        guest.wait()
        assert seen() == []
        assert cgroups.count_processes(str(root)).left == 0
