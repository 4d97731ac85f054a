"""A guest with Debian's full kernel, for tests of what the kernel of a container host lacks: virtual functions, VLANs.

Its kernel and a QEMU that emulates a card with virtual functions are unpacked once below the cache of tests; nothing is
installed. The guest's root is this machine's own file system, read-only and below a layer in memory: the same
interpreter, project and tools run in it, by emulation. ``run`` boots it for one command.

Tests below ``tests/integration/kernel`` run in it: all that were selected in one boot, each with its own report
(``tests/integration/kernel/conftest.py``).
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.environments import cache

SUITE, NEWER = "bookworm", "bookworm-backports"
"""The first QEMU with such a card is newer than the one of the suite."""
QEMU = tuple(f"{name}/{NEWER}" for name in ("qemu-system-x86", "qemu-system-common", "qemu-system-data"))
NEEDED = ("apt-get", "apt-cache", "dpkg-deb", "busybox", "cpio", "gzip", "modprobe", "depmod")
ROMS = ("/usr/share/seabios", "/usr/lib/ipxe/qemu")
BASE_MODULES = ("crc32c_generic", "virtio_pci", "9p", "9pnet_virtio", "overlay")
"""Loaded before anything else, in this order."""
MODULES = (
    *("igb", "igbvf", "vfio_pci", "vfio_iommu_type1", "8021q", "dummy", "bridge", "bonding", "vxlan", "macvtap"),
    *("veth", "tun", "sch_netem", "nf_tables", "nft_ct", "nft_masq", "nft_chain_nat", "nft_reject_inet"),
)
"""At hand in the guest: the kernel loads what is used by itself, drivers of cards ``modprobe``."""
FUNCTIONS = 7
"""Virtual functions that its card can have."""
MEMORY_MIB = 1024
BUILD_LIMIT_S, RUN_LIMIT_S = 300, 300
INSIDE = "OUTLIVE_KERNEL_GUEST"
"""Set in the environment of what runs in the guest."""

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /usr/bin /usr/sbin /new /layer /host /tmp
/bin/busybox --install -s /bin
export PATH=/sbin:/bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
for module in @base@; do modprobe $module; done
echo /bin/modprobe > /proc/sys/kernel/modprobe
hostname kernel-guest
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /host
mount -t tmpfs none /layer; mkdir -p /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /new
mount -t proc none /new/proc; mount -t sysfs none /new/sys; mount -t devtmpfs none /new/dev
mount -t tmpfs none /new/run; mkdir -p /new/dev/shm /new/dev/pts /new/out /new/lib/modules
mount -t tmpfs none /new/dev/shm; mount -t devpts none /new/dev/pts
mount --bind /lib/modules /new/lib/modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /new/out
ip link set lo up
chroot /new /bin/sh /out/command; sync; poweroff -f
"""


class Ended(NamedTuple):
    """What came of a command in the guest."""

    status: int | None
    """Its exit status; ``None``: the guest did not come to its end."""
    output: str
    """What it wrote, and the guest's console where that is all there is."""


def can_run() -> bool:
    """Whether the guest can be built and started here, or this is the guest."""
    if INSIDE in os.environ:
        return True
    tools = all(shutil.which(name) for name in NEEDED) and all(Path(one).is_dir() for one in ROMS)
    return os.geteuid() == 0 and tools


@functools.cache
def build() -> Path:
    """The folder with kernel and QEMU, made where it is not there, by one process at a time."""
    folder = cache() / f"kernel-guest-{SUITE}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "kernel-guest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _unpack(folder)
            (folder / "ready").touch()
    return folder


def _unpack(folder: Path) -> None:
    state, packages = folder / "apt", folder / "packages"
    for path in (state / "lists/partial", state / "cache/archives/partial", state / "parts", packages):
        path.mkdir(parents=True)
    (state / "status").touch()
    found = [path.read_text() for path in Path("/etc/apt/sources.list.d").glob("*.sources")]
    own = [one for text in found for one in re.split(r"\n\s*\n", text) if f"{SUITE}-updates" in one]
    if not own:
        raise RuntimeError(f"/etc/apt/sources.list.d names no source of Debian {SUITE} with its updates")
    with_newer = re.sub(r"(?m)^Suites:.*$", f"Suites: {SUITE} {NEWER}", own[0])
    (state / "parts/kernel-guest.sources").write_text(with_newer.strip() + "\n")
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": state / "parts",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    _step(["apt-get", *apt, "-qq", "update"])
    depends = _step(["apt-cache", *apt, "depends", f"linux-image-amd64/{SUITE}"])
    kernel = re.findall(r"Depends: (linux-image-\S+)", depends)[0]
    _step(["apt-get", *apt, "-qq", "download", kernel, *QEMU], packages)
    for package in packages.glob("*.deb"):
        _step(["dpkg-deb", "-x", str(package), str(folder / "root")])
    _step(["depmod", "-b", str(folder / "root"), _version(folder)])
    shutil.rmtree(packages)
    shutil.rmtree(state)


def _version(folder: Path) -> str:
    (version,) = (path.name for path in (folder / "root/lib/modules").iterdir())
    return version


def _step(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False, errors="replace"
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:300]}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout


def run(command: list[str], out: Path, *, folder: Path, limit_s: float = RUN_LIMIT_S) -> Ended:
    """Boot the guest, run the command in that folder and wait for its end. ``out`` is there ``/out``, and writable."""
    built = build()
    out.mkdir(parents=True, exist_ok=True)
    (out / "status").unlink(missing_ok=True)
    (out / "command").write_text(
        f"export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root {INSIDE}=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1\n"
        f"cd {shlex.quote(str(folder))}\n"
        f"{shlex.join(command)} > /out/output 2>&1\n"
        "echo $? > /out/status\n"
    )
    with tempfile.TemporaryDirectory(prefix="kernel-guest-") as work:
        initrd = Path(work) / "initrd.gz"
        _pack(built, Path(work) / "root", initrd)
        console = out / "console"
        said = _boot(built, initrd, out, console, limit_s)
    status = out / "status"
    if not status.exists() or not status.read_text().strip():
        tail = console.read_text(errors="replace")[-3000:] if console.exists() else ""
        output = (out / "output").read_text(errors="replace")[-3000:] if (out / "output").exists() else ""
        return Ended(None, f"{output}\n{said}\n{tail}")
    return Ended(int(status.read_text()), (out / "output").read_text(errors="replace"))


def _boot(built: Path, initrd: Path, out: Path, console: Path, limit_s: float) -> str:
    """Run the machine until it switches itself off; what QEMU wrote."""
    root, version = built / "root", _version(built)
    command = [
        str(root / "usr/bin/qemu-system-x86_64"),
        *("-L", str(root / "usr/share/qemu"), *(part for rom in ROMS for part in ("-L", rom))),
        *("-machine", "q35,accel=tcg,kernel-irqchip=split", "-m", str(MEMORY_MIB), "-smp", "1", "-cpu", "max"),
        *("-display", "none", "-nodefaults", "-no-reboot", "-serial", f"file:{console}"),
        *("-kernel", str(root / f"boot/vmlinuz-{version}"), "-initrd", str(initrd)),
        *("-append", "console=ttyS0 quiet panic=-1 intel_iommu=on"),
        *("-device", "intel-iommu,intremap=off"),
        *("-netdev", "hubport,hubid=1,id=cable", "-device", "pcie-root-port,id=root1,slot=1"),
        *("-device", "igb,netdev=cable,bus=root1,mac=52:54:00:00:01:00"),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
        *("-fsdev", f"local,id=out,path={out},security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=out,mount_tag=out"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return f"it was ended after {limit_s:g} s"
    return done.stderr[-2000:]


def _pack(built: Path, root: Path, initrd: Path) -> None:
    """The file system that the guest begins with: its modules, and what mounts the rest."""
    version, source = _version(built), built / "root"
    modules = root / "lib/modules" / version
    for name in ("bin", "dev", "proc", "sys"):
        (root / name).mkdir(parents=True)
    modules.mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), root / "bin/busybox")
    wanted = ["modprobe", "-d", str(source), "-S", version, "-a", "--show-depends", *BASE_MODULES, *MODULES]
    for file in sorted(set(re.findall(r"(?m)^insmod (\S+)", _step(wanted)))):
        place = root / Path(file).relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(source / "lib/modules" / version / name, modules)
    _step(["depmod", "-b", str(root), version])
    init = root / "init"
    init.write_text(INIT.replace("@base@", " ".join(BASE_MODULES)))
    init.chmod(0o755)
    _step(["sh", "-c", f"find . | cpio -o -H newc --quiet | gzip -1 > {shlex.quote(str(initrd))}"], root)
