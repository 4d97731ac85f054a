"""What a host must have before its guard may promise that it will be empty: checked whenever the guard is armed.

A promise that cannot be kept is worse than none, because other hosts start the VMs by it. Each requirement that is
missing is refused with the reason and what to do. A rehearsal promises nothing and needs only its folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outlive.guard import cgroups
from outlive.guard.states import BAD_INPUT, GuardError

GUEST_NAMES: Final = ("qemu-system", "qemu-kvm", "qemu:")
"""How the names of processes begin that run a guest by themselves, without KVM."""
GUEST_FILE: Final = "anon_inode:kvm-vm"
"""What every process has open that runs a guest by KVM, whatever its name."""
HYPERVISORS: Final = (
    *("qemu", "kvm", "vmware", "virtualbox", "bochs", "xen", "parallels", "virtual machine", "openstack"),
    "google compute engine",
)
"""Words by which the firmware of a virtual machine names its hardware."""


def check(
    cgroup: str,
    stop_service: tuple[str, ...],
    *,
    rehearsal: bool,
    laboratory: bool = False,
    proc: str = "/proc",
    sys: str = "/sys",
) -> None:
    """``GuardError`` where the host does not have what the promise needs."""
    check_tree(cgroup, folders=rehearsal)
    if rehearsal:
        return
    if not stop_service:
        remedy = "say --stop-service libvirt, or the command that stops what starts VMs here"
        raise GuardError(f"no --stop-service: what starts VMs would go on when the gate is shut; {remedy}")
    if not laboratory:  # nobody pauses a host of a laboratory together with the process that resets it
        check_machine(proc, sys)
    check_guests(cgroup, proc)


def check_tree(root: str, *, folders: bool = False) -> None:
    """A tree that can be killed and read: there, or made with the first VM, and without the guard itself."""
    there = next((path for path in (root, str(Path(root).parent)) if Path(path).is_dir()), "")
    if not there:
        raise GuardError(f"{root}: no such group; name the one that all VMs are below with --cgroup", BAD_INPUT)
    if not folders and not cgroups.is_version_2(there):
        remedy = "boot with systemd.unified_cgroup_hierarchy=1, or name a group of cgroup v2 with --cgroup"
        raise GuardError(f"{root} is not on cgroup v2, and nobody could see whether it is empty: {remedy}", BAD_INPUT)
    if os.getpid() in cgroups.list_processes(root):
        raise GuardError(f"{root}: the guard itself is below it; name the group of the VMs with --cgroup", BAD_INPUT)


def check_machine(proc: str = "/proc", sys: str = "/sys") -> None:
    """Hardware: the watchdog of a virtual machine stands still whenever the machine does."""
    hypervisor = _find_hypervisor(proc, sys)
    if hypervisor:
        raise GuardError(
            f"this host is itself a virtual machine ({hypervisor}): while it is paused its watchdog stands still and "
            "resets nothing; arm hosts that are hardware, or try it here with --rehearsal"
        )


def check_guests(root: str, proc: str = "/proc") -> None:
    """No guest runs outside the tree: nobody would kill it, or see it."""
    inside = cgroups.list_processes(root)
    for pid in _find_guests(proc):
        if pid not in inside:
            name = _read_text(f"{proc}/{pid}/comm")
            raise GuardError(
                f"process {pid} ({name}) runs a guest outside {root}: name the group that all VMs are below with "
                "--cgroup, or end it",
                BAD_INPUT,
            )


def _find_hypervisor(proc: str, sys: str) -> str:
    """What this machine says it runs on; empty for hardware."""
    for name in ("product_name", "sys_vendor"):
        said = _read_text(f"{sys}/class/dmi/id/{name}")
        if any(word in said.lower() for word in HYPERVISORS):
            return said
    flags = [line for line in _read_text(f"{proc}/cpuinfo").splitlines() if line.startswith("flags")]
    if any("hypervisor" in line.split() for line in flags):
        return "its processor has the flag hypervisor"
    return "by its device tree" if Path(f"{sys}/firmware/devicetree/base/hypervisor").exists() else ""


def _find_guests(proc: str) -> Iterator[int]:
    for process in Path(proc).iterdir():
        if process.name.isdecimal() and (
            _read_text(f"{process}/comm").startswith(GUEST_NAMES) or _has_kvm(f"{process}/fd")
        ):
            yield int(process.name)


def _has_kvm(folder: str) -> bool:
    try:
        return any(_link_target(file) == GUEST_FILE for file in Path(folder).iterdir())
    except OSError:
        return False


def _link_target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
