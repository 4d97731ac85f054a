"""The guest: a kernel and one small program that boots in seconds under emulation and shows that it runs, and who.

The program (``guest.c``) counts on the serial console and writes numbered blocks with its run's id to its first disk;
``lab.checker`` tells from these whether two runs ever wrote in turns. The kernel is Debian's cloud kernel, unpacked
from its package and not installed. Everything is built once, into a cache.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

from lab.processes import LabError, run

BLOCK = 512
RING = 255
"""Blocks of the ring, from block 1 on; the same number is in ``guest.c``."""
DISK_BYTES = 1 << 20
MEMORY_MIB = 96
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"),
    *("failover", "net_failover", "virtio_net", "af_packet", "button", "evdev"),
)
"""What a disk, a network and the power button need; what others need comes first."""
NETWORK = {
    "net.sh": """b=/bin/busybox
$b ifconfig lo up; $b ifconfig eth0 up
for one in $($b cat /proc/cmdline); do case $one in ip6=*) $b ip addr add ${one#ip6=} dev eth0 ;; esac; done
$b udhcpc -i eth0 -f -t 100 -T 1 -A 1 -s /dhcp.sh >/dev/null 2>&1 &
exec $b nc -ll -p 7 -e $b cat
""",
    "dhcp.sh": """#!/bin/sh
b=/bin/busybox
case $1 in bound | renew)
  $b ifconfig eth0 $ip netmask $subnet mtu ${mtu:-1500}
  for one in $router; do $b route add $one dev eth0 2>/dev/null; $b route add default gw $one dev eth0 2>/dev/null; done
  [ $1 = renew ] || echo "address $ip router ${router:-none} mtu ${mtu:-1500}" >/dev/ttyS0 ;;
esac
""",
}
"""What a guest with ``net=dhcp`` runs. An address in ``ip6=`` is its own besides: it has no client of DHCPv6."""
SOURCE = Path(__file__).with_name("guest.c")


class Guest(NamedTuple):
    """What a hypervisor boots."""

    kernel: Path
    initrd: Path
    cmdline: str = "console=ttyS0 quiet panic=1 random.trust_cpu=on no_timer_check"


def cache() -> Path:
    """Where the guest is built once for all labs of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return Path(base, "outlive-lab")


def build(folder: Path | None = None) -> Guest:
    """The guest, from the cache where it is there; needs gcc, busybox-static, cpio and Debian's package index."""
    folder = folder or cache()
    folder.mkdir(parents=True, exist_ok=True)
    made = Guest(folder / "vmlinuz", folder / "initrd.gz")
    stamp = folder / "built-from"
    recipe = SOURCE.read_text() + repr(MODULES) + repr(NETWORK)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.kernel.exists() and made.initrd.exists() and stamp.exists() and stamp.read_text() == recipe:
            return made
        work = folder / "build"
        shutil.rmtree(work, ignore_errors=True)
        _unpack_kernel(work)
        shutil.copy(next(work.glob("kernel/boot/vmlinuz-*")), made.kernel)
        _pack(work, made.initrd)
        shutil.rmtree(work)
        stamp.write_text(recipe)
    return made


def make_disk(path: Path) -> Path:
    """An empty disk, unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(b"\0" * DISK_BYTES)  # written, not sparse: a full file system of the machine stops no guest
    return path


def _unpack_kernel(work: Path) -> None:
    (work / "kernel").mkdir(parents=True)
    lines = run("apt-cache", "depends", "linux-image-cloud-amd64").splitlines()
    package = next((line.partition("Depends: ")[2].strip() for line in lines if "Depends: " in line), "")
    if not package:
        raise LabError("apt-cache knows no linux-image-cloud-amd64: run apt-get update on a Debian with amd64")
    kept = next(iter(work.parent.glob(f"{package}_*.deb")), None)
    if kept is None:
        run("sh", "-c", f'cd "$1" && apt-get -qq download {package}', "sh", str(work.parent), limit_s=300)
        kept = next(iter(work.parent.glob(f"{package}_*.deb")))
    run("dpkg-deb", "-x", str(kept), str(work / "kernel"))


def _pack(work: Path, initrd: Path) -> None:
    root = work / "root"
    for name in ("bin", "dev", "proc", "sys", "mod"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabError("busybox: not installed (Debian: apt-get install busybox-static)")
    shutil.copy(busybox, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    for number, name in enumerate(MODULES):
        for found in (work / "kernel").rglob(f"{name}.ko"):
            shutil.copy(found, root / f"mod/{number:02d}-{name}.ko")
    for name, text in NETWORK.items():
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    run("gcc", "-O2", "-static", "-o", str(root / "init"), str(SOURCE))
    run("strip", str(root / "init"))
    run("sh", "-c", 'cd "$1" && find . | cpio -o -H newc --quiet >"$2"', "sh", str(root), str(work / "initrd"))
    initrd.write_bytes(gzip.compress((work / "initrd").read_bytes(), 6))


def interface(mac: str, port: str, bridge: str = "br-int") -> str:
    """An interface on the host's Open vSwitch, whose id OVN knows. A datapath in userspace takes whole packets only."""
    off = "csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'"
    return f"""<interface type='bridge'>
      <mac address='{mac}'/>
      <source bridge='{bridge}'/>
      <virtualport type='openvswitch'><parameters interfaceid='{port}'/></virtualport>
      <model type='virtio'/>
      <driver name='qemu'><host {off} mrg_rxbuf='off'/><guest {off}/></driver>
    </interface>"""


def definition(
    name: str,
    disk: Path,
    console: Path,
    *,
    guest: Guest | None = None,
    extra: str = "",
    element: str = "",
    interfaces: str = "",
) -> str:
    """A domain's XML, as an operator would write it: this guest with one disk and a console log.

    ``extra`` goes to the kernel's command line (``count_ms=20``). ``element`` of the disk: none: that of a raw file.
    """
    made = guest or build()
    file = f"""<disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>"""
    return f"""<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{disk}")}</uuid>
  <memory unit='MiB'>{MEMORY_MIB}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{made.kernel}</kernel>
    <initrd>{made.initrd}</initrd>
    <cmdline>{made.cmdline} {extra}</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    {element or file}
    {interfaces}
    <serial type='file'><source path='{console}' append='on'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
"""
