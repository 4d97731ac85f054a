"""The daemon on a host with a real libvirt: what it publishes, and that a libvirt that hangs costs no renewal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.processes import LabError, run, until
from lab.single import Single

from outlive.base import Unavailable
from outlive.resources import examine, parse, parse_xml

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.slow]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Single]:
    quick = {"node": {"usage": "3s", "look": "2s", "callLimit": "3s"}, "libvirt": {"callLimit": "2s"}}
    made = Single(tmp_path_factory.mktemp("single"), **quick)
    try:
        made.start()
        made.add_vms(2)
        until(lambda: usage(made).get("running") == 2, "both run", 60, 0.5)
        yield made
    finally:
        made.stop()


def usage(single: Single) -> dict[str, Any]:
    return single.outlive("get", "hypervisorusages", "host-1")["usage"]


def guests(single: Single) -> dict[int, str]:
    return {pid: name for pid, name in single.host.processes() if name.startswith("qemu")}


def test_a_daemon_that_is_started_again_takes_its_guests_over(single: Single) -> None:
    before, record = guests(single), single.record()
    assert len(before) == 2
    os.kill(single.pid, signal.SIGKILL)
    until(lambda: single.record()["nonce"] != record["nonce"], "another daemon renews", 30, 0.2)
    ready = len(single.events("node.ready"))
    os.kill(single.pid, signal.SIGUSR2)
    until(lambda: len(single.events("node.ready")) > ready, "the installed version took over", 30, 0.2)
    until(lambda: usage(single).get("running") == 2, "both are counted", 30, 0.5)
    assert guests(single) == before, "no guest was touched"
    assert single.record().get("epoch", 1) == record.get("epoch", 1)


def test_each_guest_is_counted(single: Single) -> None:
    until(lambda: set(usage(single).get("guests", {})) == {"vm-1", "vm-2"}, "both are counted", 30, 0.5)
    kinds = {"cpu", "memory", "diskRead", "diskWritten", "netReceived", "netSent"}
    assert all(set(used) == kinds for used in usage(single)["guests"].values())


RICH = """<domain type='qemu'><name>rich</name><uuid>0f6a1c52-4c1f-4a56-9f0e-2a4d1b1c0001</uuid>
<metadata><x:os xmlns:x="http://example.org/x" id="debian"/></metadata><memory unit='MiB'>32</memory>
<memoryBacking><source type='memfd'/></memoryBacking><vcpu placement='static'>2</vcpu><iothreads>1</iothreads>
<os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/><bootmenu enable='yes'/><smbios mode='sysinfo'/></os>
<sysinfo type='smbios'><system><entry name='manufacturer'>Example</entry></system></sysinfo>
<features><acpi/><apic/><hyperv mode='custom'><relaxed state='on'/></hyperv><vmport state='off'/></features>
<cpu mode='custom' match='exact' check='none'><model fallback='allow'>qemu64</model></cpu>
<clock offset='utc'><timer name='rtc' tickpolicy='catchup'/><timer name='hpet' present='no'/></clock>
<pm><suspend-to-mem enabled='no'/></pm><devices>
<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none' discard='unmap' iothread='1'/>
<source file='/rich.raw'/><target dev='vda' bus='virtio'/><serial>abc</serial></disk>
<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>
<controller type='usb' model='qemu-xhci' ports='15'/><controller type='scsi' model='virtio-scsi'/>
<interface type='user'><model type='virtio'/></interface><serial type='pty'/>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel><input type='tablet' bus='usb'/>
<graphics type='vnc' autoport='yes'/><video><model type='virtio' heads='1'/></video>
<watchdog model='i6300esb' action='reset'/><memballoon model='virtio'><stats period='10'/></memballoon>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng><panic model='isa'/></devices></domain>"""


def test_what_this_libvirt_prints_of_a_guest_is_a_definition(single: Single) -> None:
    folder = single.host.folder
    (folder / "rich.raw").write_bytes(bytes(1 << 20))
    (folder / "rich.xml").write_text(RICH.replace("/rich.raw", f"{folder}/rich.raw"))
    virsh = ("virsh", "--connect", "qemu:///system")
    single.host.run(*virsh, "create", str(folder / "rich.xml"), "--paused")
    try:
        for words in ((), ("--inactive",), ("--migratable",)):
            printed = single.host.run(*virsh, "dumpxml", "rich", *words)
            assert len(examine(parse_xml(printed)).outside) == 2, printed
            assert parse(printed).disk_ids == (f"file:{folder}/rich.raw",)
    finally:
        single.host.run(*virsh, "destroy", "rich")


def test_what_a_guest_writes_to_its_console_is_kept_and_its_screen_is_known(single: Single) -> None:
    def console() -> dict[str, Any]:
        found = single.outlive("get", "consoles")["items"]
        return {one["metadata"]["name"]: one for one in found}.get("vm-1", {})

    until(lambda: "SeaBIOS" in console().get("text", ""), "the firmware has written to the console", 30, 0.5)
    assert console()["host"] == "host-1"
    log = single.host.folder / "var/log/outlive/console/vm-1.log"
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with log.open("ab") as file:
        file.write(b"a line\n\xff")
    until(lambda: console()["text"].endswith("a line\n\ufffd"), "the line is kept", 30, 0.5)
    log.rename(log.with_name("vm-1.log.0"))
    log.write_text("after a rotation\n")
    until(lambda: console()["text"].endswith("after a rotation\n"), "the new file is read", 30, 0.5)
    assert "SeaBIOS" in console()["text"]
    screens = {name: single.outlive("vm", "info", name)["vnc"] for name in ("vm-1", "vm-2")}
    assert {one["listen"] for one in screens.values()} == {"127.0.0.1"}
    assert len({one["port"] for one in screens.values()}) == 2


def vm_verb(single: Single, verb: str, *words: str) -> str:
    """What ``outlive vm VERB`` prints; ``LabError`` with its one line where it is refused."""
    program, token = str(Path(sys.executable).with_name("outlive")), f"@{single.state / 'store/token'}"
    env = ["env", f"OUTLIVE_SERVER={single.url}", f"OUTLIVE_TOKEN={token}", "OUTLIVE_INSECURE=1"]
    return run(*single.switch.inside("store", *env, program, "vm", verb, *words), limit_s=120)


def test_a_guest_is_given_an_interface_while_it_runs_and_its_definition_has_it_at_the_same_address(
    single: Single,
) -> None:
    mac, device, disk = "52:54:00:00:00:0b", single.state / "port.xml", single.state / "disk.xml"
    device.write_text(f"<interface type='user'><mac address='{mac}'/><model type='virtio'/></interface>")
    disk.write_text("<disk type='file'><source file='/more.raw'/><target dev='vdb' bus='virtio'/></disk>")

    def spec() -> dict[str, Any]:
        return dict(single.outlive("get", "vm", "vm-1")["spec"])

    def runs_with() -> str:
        return single.host.run("virsh", "--connect", "qemu:///system", "dumpxml", "vm-1")

    for _ in range(2):
        assert vm_verb(single, "attach", "vm-1", str(device)).endswith(f"vm-1 has {mac}\n")
    address = ET.fromstring(spec()["definition"]).find("devices/interface[mac]/address")
    there = ET.fromstring(runs_with()).find("devices/interface[mac]/address")
    assert address is not None
    assert there is not None
    assert (there.get("slot"), there.get("bus")) == (address.get("slot"), address.get("bus")) == ("0x1f", "0x00")
    with pytest.raises(LabError, match="a disk is not given to a guest that runs"):
        vm_verb(single, "attach", "vm-1", str(disk))
    with pytest.raises(LabError, match=f"vm-1 still has {mac}"):
        vm_verb(single, "detach", "vm-1", mac, "--yes")  # nothing of this guest's answers
    assert mac in spec()["definition"]
    assert mac in runs_with()
    assert len(guests(single)) == 2


@pytest.fixture
def ssh(single: Single, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who may log in on the host as root, by a key."""
    folder = single.host.folder / "etc/ssh_test"
    folder.mkdir()
    for key in (folder / "host", tmp_path / "key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    shutil.copy(tmp_path / "key.pub", folder / "known")
    settings = "HostKey /etc/ssh_test/host\nAuthorizedKeysFile /etc/ssh_test/known\nStrictModes no\nUsePAM no\n"
    (folder / "config").write_text(f"{settings}PidFile none\nPermitRootLogin prohibit-password\n")
    (single.host.folder / "run/sshd").mkdir(mode=0o755, exist_ok=True)
    single.host.add_service("50-sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh_test/config"])
    single.host.ask("start sshd")
    until(lambda: single.host.run("ss", "-Hltn", "sport", "=", ":22"), "sshd listens", 30, 0.1)
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    known = f"-o UserKnownHostsFile={tmp_path}/known -o StrictHostKeyChecking=accept-new"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F none -i {tmp_path}/key {known} "$@"\n')
    program.chmod(0o755)
    yield {"PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "xterm"}
    single.host.ask("stop sshd")


@pytest.mark.component("sshd")
def test_a_console_is_attached_to_from_elsewhere_over_ssh(single: Single, ssh: dict[str, str]) -> None:
    """Somebody on another machine sees what the guest writes from then on, and leaves."""
    words = [str(Path(sys.executable).with_name("outlive")), "console", "vm-2", "--ssh", f"root@{single.host.address}"]
    token = f"@{single.state / 'store/token'}"
    mine = {"OUTLIVE_SERVER": single.url, "OUTLIVE_TOKEN": token, "OUTLIVE_INSECURE": "1"}
    pid, terminal = pty.fork()
    if pid == 0:
        command = single.switch.inside("store", *words)
        os.execvpe(command[0], command, {**os.environ, **ssh, **mine})
    said = b""

    def until_said(text: bytes, limit_s: float = 60.0) -> None:
        nonlocal said
        end_s = time.monotonic() + limit_s
        while text not in said:
            ready, _, _ = select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, said.decode(errors="replace")
            said += os.read(terminal, 65_536)

    try:
        until_said(b"Escape character is ^]")
        assert b"vm-2 on host-1: ssh -t --" in said
        single.host.run("virsh", "--connect", "qemu:///system", "reset", "vm-2")
        until_said(b"SeaBIOS")
        os.write(terminal, b"\x1d")
        until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0), "it has ended well", 30)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    assert len(guests(single)) == 2


def test_a_libvirt_that_hangs_costs_no_renewal(single: Single) -> None:
    until(lambda: "domains" not in usage(single).get("stale", ()), "all figures are fresh", 30, 0.5)
    libvirtd, before = single.libvirtd.pid, guests(single)
    first = single.record()
    os.kill(libvirtd, signal.SIGSTOP)
    try:
        until(lambda: "domains" in usage(single).get("stale", ()), "the figures of domains are stale", 60, 0.5)
        shown = usage(single)
    finally:
        os.kill(libvirtd, signal.SIGCONT)
    assert {"domains", "guests"} >= set(shown["stale"])
    assert shown["running"] == 2, "as they were when libvirt answered last"
    assert single.record()["nonce"] == first["nonce"]
    assert single.events("membership.not_renewed") == []
    until(lambda: "domains" not in usage(single).get("stale", ()), "libvirt answers again", 60, 0.5)
    assert guests(single) == before


def test_a_hypervisor_that_is_too_old_is_named_with_what_is_needed() -> None:
    """libvirt's own test driver says that it is version 0.0.2."""
    from outlive.drivers.libvirt import LibvirtService

    async def asked() -> None:
        with pytest.raises(Unavailable, match=r"^QEMU 0\.0\.2 is too old \(install QEMU 7\.2\.0 or later\)$"):
            await LibvirtService("test:///default", threads=2, limit_s=10).ask(
                lambda connection: connection.getVersion()
            )

    asyncio.run(asked())


GUEST = """<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os>
<devices><disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'/><source file='{disk}'/>
<target dev='vda' bus='virtio'/></disk></devices></domain>"""
HOLDER = """import fcntl, struct, sys, time
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 100, 1, 0))
fcntl.fcntl(file, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 200, 1, 0))
print("locked", flush=True)
time.sleep(600)
"""
"""Takes the locks that QEMU takes (``F_OFD_SETLK``)."""


def _defined(single: Single, name: str, number: int, disk: Path) -> str:
    uuid = f"11111111-2222-4333-8444-{number:012d}"
    file = single.state / f"{name}.xml"
    file.write_text(GUEST.format(name=name, uuid=uuid, disk=disk))
    vm_verb(single, "define", str(file), "--wait")
    return uuid


def _is_down_without_a_hold(single: Single, uuid: str, reason: str) -> bool:
    status = single.outlive("get", "vm", uuid)["status"]
    return (status["phase"], status["reason"], status.get("holders", [])) == ("fail", reason, [])


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    folder = tmp_path / "disks"
    folder.mkdir()
    (folder / "other.raw").write_bytes(b"\0" * 4096)
    return folder


def test_a_start_without_its_disk_fails_at_once_with_the_reason_and_succeeds_once_the_disk_is_there(
    single: Single, disks: Path
) -> None:
    disk = disks / "web.raw"
    uuid = _defined(single, "web", 1, disk)
    began = time.monotonic()
    with pytest.raises(LabError, match=f"web: start failed on host-1: disk file:{disk} does not exist"):
        vm_verb(single, "start", "web", "--wait")
    assert time.monotonic() - began < 30
    until(lambda: _is_down_without_a_hold(single, uuid, "disk-missing"), "it is down without a hold", 30, 0.2)
    disk.write_bytes(b"\0" * 4096)
    assert "runs" in vm_verb(single, "start", "web", "--wait")
    vm_verb(single, "stop", "web", "--wait", "--yes")


def test_a_start_whose_disk_a_stranger_has_locked_fails_at_once_and_leaves_no_hold(single: Single, disks: Path) -> None:
    disk = disks / "other.raw"
    uuid = _defined(single, "db", 2, disk)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(disk)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(LabError, match=r"db: start failed on host-1: lock image of .* says that somebody else"):
                vm_verb(single, "start", "db", "--wait")
        finally:
            holder.kill()
    until(lambda: _is_down_without_a_hold(single, uuid, "lock-foreign"), "it is down without a hold", 30, 0.2)
    assert not single.events("vm.worker_crashed")
    assert "runs" in vm_verb(single, "start", "db", "--wait")
    vm_verb(single, "stop", "db", "--wait", "--yes")
