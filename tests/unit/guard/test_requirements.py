"""What a host must have before its guard may be armed, on made-up machines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from outlive.guard import NO_HARDWARE, GuardError, Watchdog, cgroups, read, requirements
from outlive.guard.watchdog import _check_identity

STOP = ("systemctl", "stop", "libvirtd.service")


def machine(folder: Path, *, flags: str = "fpu vme", dmi: dict[str, str] | None = None) -> tuple[str, str]:
    """A /proc and a /sys."""
    proc, sys = folder / "proc", folder / "sys"
    (sys / "class/dmi/id").mkdir(parents=True)
    proc.mkdir()
    (proc / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    for name, said in (dmi or {}).items():
        (sys / "class/dmi/id" / name).write_text(said + "\n")
    return str(proc), str(sys)


def process(proc: str, pid: int, comm: str, *files: str) -> None:
    """A process, with what its descriptors point to."""
    folder = Path(proc, str(pid), "fd")
    folder.mkdir(parents=True)
    (folder.parent / "comm").write_text(comm + "\n")
    for number, file in enumerate(files):
        (folder / str(number)).symlink_to(file)


def test_hardware_is_taken(tmp_path: Path) -> None:
    requirements.check_machine(*machine(tmp_path, dmi={"sys_vendor": "Dell Inc.", "product_name": "PowerEdge R640"}))


@pytest.mark.parametrize(
    ("flags", "dmi"),
    [
        ("fpu hypervisor vme", {}),
        ("fpu", {"sys_vendor": "QEMU", "product_name": "Standard PC (Q35 + ICH9, 2009)"}),
        ("fpu", {"sys_vendor": "VMware, Inc.", "product_name": "VMware7,1"}),
        ("fpu", {"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}),
    ],
)
def test_virtual_machine_is_refused_with_the_remedy(tmp_path: Path, flags: str, dmi: dict[str, str]) -> None:
    with pytest.raises(GuardError, match=r"itself a virtual machine.*--rehearsal"):
        requirements.check_machine(*machine(tmp_path, flags=flags, dmi=dmi))


@pytest.mark.parametrize("name", sorted(NO_HARDWARE))
def test_watchdog_that_is_none_of_the_machines_own_is_refused(name: str) -> None:
    with pytest.raises(GuardError, match="own watchdog"):
        _check_identity("/dev/watchdog", f"{name} timer")


def test_file_is_no_watchdog_unless_it_is_a_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GuardError, match="--rehearsal"):
        Watchdog(str(tmp_path / "file"), rehearsal=False).start(10.0)


def test_watchdog_of_a_server_is_taken() -> None:
    for identity in ("iTCO_wdt", "SP5100 TCO timer", "IPMI", "HPE iLO2+ HW Watchdog Timer"):
        _check_identity("/dev/watchdog", identity)


@pytest.mark.parametrize(
    ("comm", "files"), [("qemu-system-x86", ()), ("qemu:web-1", ()), ("vm-worker", ("/dev/kvm", "anon_inode:kvm-vm"))]
)
def test_guest_outside_the_group_is_refused_by_its_number(tmp_path: Path, comm: str, files: tuple[str, ...]) -> None:
    proc, _ = machine(tmp_path)
    process(proc, 17, "libvirtd", "/dev/kvm")
    requirements.check_guests(str(tmp_path / "machine.slice"), proc)
    process(proc, 4711, comm, *files)
    with pytest.raises(GuardError, match=r"process 4711 .* runs a guest outside"):
        requirements.check_guests(str(tmp_path / "machine.slice"), proc)


def test_guest_inside_the_group_is_where_it_belongs(tmp_path: Path) -> None:
    proc, _ = machine(tmp_path)
    process(proc, 4711, "qemu-system-x86")
    group = tmp_path / "machine.slice" / "machine-1.scope"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("4711\n")
    requirements.check_guests(str(tmp_path / "machine.slice"), proc)


def test_folders_are_no_tree_of_the_kernel_unless_it_is_a_rehearsal(tmp_path: Path) -> None:
    root = str(tmp_path)
    requirements.check(root, (), rehearsal=True)
    with pytest.raises(GuardError, match="not on cgroup v2"):
        requirements.check(root, STOP, rehearsal=False)


def test_guard_that_could_not_stop_what_starts_vms_is_not_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "is_version_2", lambda path: True)
    proc, sys = machine(tmp_path)
    (tmp_path / "machine.slice").mkdir()
    with pytest.raises(GuardError, match="--stop-service libvirt"):
        requirements.check(str(tmp_path / "machine.slice"), (), rehearsal=False, proc=proc, sys=sys)
    requirements.check(str(tmp_path / "machine.slice"), STOP, rehearsal=False, proc=proc, sys=sys)


def test_what_cannot_be_read_is_never_empty(tmp_path: Path) -> None:
    for root in (tmp_path / "there", tmp_path / "not-there", tmp_path / "no" / "parent"):
        (tmp_path / "there").mkdir(exist_ok=True)
        assert cgroups.count_processes(str(root)).left == 1
    assert cgroups.count_processes(str(tmp_path / "not-there"), folders=True).left == 0
    assert cgroups.count_processes(str(tmp_path / "no" / "parent"), folders=True).left == 1


def test_libvirt_stands_for_all_daemons_that_start_guests_with_their_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    systemctl = tmp_path / "systemctl"
    enabled = "libvirtd.socket enabled enabled\nvirtqemud-ro.socket enabled disabled\n"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ "$1" = list-unit-files ] && printf "{enabled}"\nexit 0\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = read(["--stop-service", "libvirt", "--start-service", "libvirt"])
    subprocess.run(options.stop_service, check=True)
    subprocess.run(options.start_service, check=True)
    stop, _, start = asked.read_text().splitlines()
    for daemon in ("libvirtd", "virtqemud", "virtproxyd"):
        assert f"{daemon}*.service" in stop.split()
        assert f"{daemon}*.socket" in stop.split()
    assert start == "--no-block start libvirtd.socket virtqemud-ro.socket"


@pytest.mark.parametrize(("state", "written"), [("active", b""), ("inactive", b"V"), ("", b"V")])
def test_watchdog_that_a_dead_guard_left_running_is_not_stopped_where_arming_fails(
    tmp_path: Path, state: str, written: bytes
) -> None:
    device, classes = tmp_path / "watchdog7", tmp_path / "class"
    device.touch()
    if state:
        (classes / "watchdog7").mkdir(parents=True)
        (classes / "watchdog7/state").write_text(f"{state}\n")
    with pytest.raises(GuardError):
        Watchdog(str(device), rehearsal=False, classes=str(classes)).start(10.0)
    assert device.read_bytes() == written
