"""libvirt and QEMU on two laboratory hosts as a subject: drivers are processes there, guests are tiny and emulated.

The guest is one sector of code: it sleeps until the next tick of its clock, for ever, and switches itself off once
somebody presses its power button. So whether it runs is seen from outside, by the processor time of its own threads.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from lab.hosts import PROJECT, Host, Switch
from lab.libvirtd import Libvirtd
from lab.processes import LabError, until
from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.loops import run_real

from outlive.base import errors
from outlive.drivers.libvirt import MARK
from outlive.node.ports import HypervisorPort
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec, complete_vm, encode, with_device

CODE: Final = bytes.fromhex("FB BA0206 B80001 EF F4 BA0006 ED F6C401 74F6 BA0406 B80020 EF EBED")
"""sti; PM1a_EN = power button; again: hlt; if PM1a_STS has not its bit: again; PM1a_CNT = off; again."""
BUSY: Final = bytes.fromhex("FA B80010 8ED8 31DB FF07 83C302 75F9 8CD8 050010 3D0090 75EB B80010 EBE6")
"""cli; first: ds = 0x1000; next: bx = 0; again: ++[bx]; bx += 2; until 0: again; ds += 0x1000; until 0x9000: next."""
SEEN_S: Final = 0.25
"""A guest that runs uses its processor within this time, where the machine has time for it, …"""
LOOKS_RUNNING: Final = 4
"""… and within so many of them where others use the machine as well."""
LOOKS: Final = 4
FREEZER: Final = Path("/sys/fs/cgroup/freezer")
DEFINITION: Final = """<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>16</memory>
<vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>
<devices><disk type='file'><driver name='qemu' type='raw'/><source file='{disk}'/><target dev='hda' bus='ide'/></disk>
<serial type='null'/><controller type='scsi' model='virtio-scsi'/>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""


class Remote:
    """A driver in a process of its own on a host: ``HypervisorPort``, and a number by which it is killed."""

    def __init__(self, path: Path, when_reached: Callable[[], None]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self._socket.connect(str(path))
        except OSError:  # it does not listen yet
            self._socket.close()
            raise
        _, found, _, _ = self._socket.recvmsg(64, socket.CMSG_SPACE(12))
        self.pid = struct.unpack("3i", found[0][2])[0]
        self._when_reached = when_reached
        self._answers: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._calls = 0
        self._reader: asyncio.Task[None] | None = None
        self.killed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            words = {"migrate": "target", "decline": "run_id", "attach": "device", "detach": "device"}
            names = ("vm", words[name]) if name in words else ("vm",)
            return self.call(name, {**dict(zip(names, args, strict=False)), **given})

        return call

    async def call(self, name: str, given: dict[str, Any]) -> Any:
        if self._reader is None:
            self._socket.setblocking(False)
            self._stream = await asyncio.open_connection(sock=self._socket)
            self._reader = asyncio.create_task(self._read())
        self._calls += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[self._calls] = name, answer
        self._stream[1].write(encode([self._calls, name, given]) + b"\n")
        return await answer

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        if self._reader is not None:
            self._reader.cancel()
            self._stream[1].close()
        else:
            self._socket.close()

    async def _read(self) -> None:
        """Until the process has ended: what it has not answered by then it never answers."""
        try:
            with contextlib.suppress(ConnectionError):  # it was killed with a call that it had not read
                while line := await self._stream[0].readline():
                    self._receive(line)
        finally:
            for _, answer in self._answers.values():
                answer.cancel()

    def _receive(self, line: bytes) -> None:
        from tests.conformance.ports.libvirt_process import answered

        number, kind, value = msgspec.json.decode(line)
        if kind == "reached":
            until(lambda: start_state(self.pid) == "T", "the driver stands still", 30)
            self._when_reached()
            self.signal(signal.SIGCONT)
            return
        name, answer = self._answers.pop(number)
        if answer.done():
            return
        if kind:
            answer.set_exception(getattr(errors, kind, RuntimeError)(value))
        else:
            answer.set_result(answered(value, name))


class OneHost:
    """A laboratory host with libvirt, and drivers on it."""

    def __init__(self, switch: Switch, name: str, number: int) -> None:
        self.lab = Host(switch, name, number)
        self.libvirtd = Libvirtd(self.lab)
        self.libvirtd.make()
        self._socket = switch.state / f"{name}.sock"
        self._serving: subprocess.Popen[bytes] | None = None

    @property
    def group(self) -> Path:
        return self.lab._group

    def start(self) -> None:
        self.libvirtd.start(60)
        self._socket.unlink(missing_ok=True)
        words = [sys.executable, "-m", "tests.conformance.ports.libvirt_process", str(self._socket)]
        command = self.lab.inside(*words, self.lab.address)
        env = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT}/src"}
        self._serving = subprocess.Popen(command, env=env, cwd=PROJECT)
        until(self._socket.exists, f"drivers of {self.lab.name} are served", 30)

    def driver(self, when_reached: Callable[[], None]) -> Remote:
        return until(lambda: _connected(self._socket, when_reached), "a driver answers", 30)

    def stop(self) -> None:
        self.lab.power_off()
        if self._serving is not None:
            self._serving.wait()

    def guests(self, vm: str = "") -> list[int]:
        """Processes of guests, as this machine numbers them."""
        found = []
        for folder, _, _ in os.walk(self.group):
            with contextlib.suppress(OSError):
                for word in Path(folder, "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        line = Path(f"/proc/{word}/cmdline").read_bytes()
                        if f"id={MARK}{vm}{'_' if vm else ''}".encode() in line:
                            found.append(int(word))
        return found


def _connected(path: Path, when_reached: Callable[[], None]) -> Remote | None:
    with contextlib.suppress(OSError):
        return Remote(path, when_reached)
    return None


def _kill(pid: int) -> None:
    """Kill a process that may have ended since it was looked for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def start_state(pid: int) -> str:
    """What a process is doing, as the kernel names it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def used(pid: int) -> int:
    """Processor time of the guest's own threads, in nanoseconds."""
    total = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if (task / "comm").read_text().startswith("CPU "):
                    total += int((task / "schedstat").read_text().split()[0])
    return total


class TwoHosts:
    """The hosts, for all tests of this process."""

    def __init__(self) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="outlive-libvirt-"))
        self.switch = Switch(self.state)
        self.switch.start()
        self.hosts = {name: OneHost(self.switch, f"host-{name}", number) for name, number in (("a", 11), ("b", 12))}
        for one in self.hosts.values():
            one.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        for one in self.hosts.values():
            one.stop()
        self.switch.stop()
        shutil.rmtree(self.state, ignore_errors=True)


_hosts: TwoHosts | None = None


def two_hosts() -> TwoHosts:
    """Started once."""
    global _hosts
    if _hosts is None:
        _hosts = TwoHosts()
    return _hosts


class RealHypervisors:
    """See ``harness.HypervisorHarness``."""

    settle_s = 0.7
    pace = 0.15

    def __init__(self, hosts: TwoHosts) -> None:
        self.hosts = hosts.hosts
        self.state = hosts.state
        self._drivers: list[tuple[str, Remote]] = []
        self._failing: tuple[str, int] | None = None
        self._phase = ""
        self._outside = self._autostart = False
        self._hung: Path | None = None
        self._foreign: list[str] = []
        self._both: set[str] = set()
        self.when_reached = self._reached
        """What happens where a migration stands still."""
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def vm(self, name: str, code: bytes = CODE) -> VirtualMachine:
        disk = self.state / f"{name}.img"
        if not disk.with_suffix(".away").exists():
            sector = code.ljust(510, b"\0") + b"\x55\xaa"
            if not disk.exists() or disk.read_bytes()[: len(sector)] != sector:
                disk.write_bytes(sector.ljust(1 << 20, b"\0"))
        xml = DEFINITION.format(name=name, uuid=uuid.uuid5(uuid.NAMESPACE_DNS, name), disk=disk)
        return complete_vm(VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(definition=xml)))

    def busy_vm(self, name: str) -> VirtualMachine:
        return self.vm(name, BUSY)

    def vm_with_disk(self, name: str, target: str) -> VirtualMachine:
        vm, disk = self.vm(name), self.state / f"{name}-{target}.img"
        disk.write_bytes(bytes(1 << 20))
        driver = "<driver name='qemu' type='raw'/>"
        xml = f"<disk type='file'>{driver}<source file='{disk}'/><target dev='{target}'/></disk>"
        definition, _ = with_device(vm.spec.definition, xml)
        spec = msgspec.structs.replace(vm.spec, definition=definition)
        return complete_vm(msgspec.structs.replace(vm, spec=spec))

    def driver(self, host: str = "a") -> HypervisorPort:
        self._mend()
        if self._outside:  # also what came since the last look
            self._move_outside()
        made = self.hosts[host].driver(lambda: self.when_reached())
        self._drivers.append((host, made))
        if self._phase in ("precopy", "paused"):
            phase, self._phase = self._phase, ""
            return _Failing(made, phase)  # type: ignore[return-value]
        return made  # type: ignore[return-value]

    def kill(self) -> None:
        self._drivers[-1][1].kill()

    def remote(self, host: str = "a") -> Remote:
        """A driver that is asked more than the port has."""
        self.driver(host)
        return self._drivers[-1][1]

    def processes(self, vm: str, host: str = "a") -> int:
        return len(self.hosts[host].guests(vm))

    def executes(self, vm: str, host: str = "a") -> bool:
        pids = self.hosts[host].guests(vm)
        before = [used(pid) for pid in pids]
        for _ in range(LOOKS_RUNNING if pids else 0):
            time.sleep(SEEN_S)
            if any(used(pid) > was for pid, was in zip(pids, before, strict=True)):
                return True
        return False

    def both_ran(self, vm: str) -> bool:
        return vm in self._both

    def stop_service(self, host: str = "a") -> None:
        self.hosts[host].libvirtd.stop()

    def lose_track(self, vm: str) -> None:
        one = self.hosts["a"]
        one.libvirtd.stop()
        for file in (one.lab.folder / "run/libvirt/qemu").glob(f"{vm}.*"):
            file.unlink()
        one.libvirtd.start()

    def outside_slice(self) -> None:
        self._outside = True
        self._move_outside()

    def autostart(self) -> None:
        self._virsh("define", self._plain("other"))
        self._virsh("autostart", "other")
        self._autostart = True

    def foreign(self, name: str) -> str:
        self._virsh("create", self._plain(name))
        self._foreign.append(name)
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def _plain(self, name: str) -> str:
        """A file with a definition as somebody writes it by hand."""
        self.vm(name)
        disk, file = self.state / f"{name}.img", self.state / f"{name}.xml"
        file.write_text(DEFINITION.format(name=name, uuid=uuid.uuid5(uuid.NAMESPACE_DNS, name), disk=disk))
        return str(file)

    def _virsh(self, *words: str) -> None:
        self.hosts["a"].lab.run("virsh", "--connect", "qemu:///system", *words)

    def crash(self, vm: str, host: str = "a") -> None:
        """It is over once the kernel has let it go: until then a thread may still write, and connections are open."""
        pids = list(self.hosts[host].guests(vm))
        for pid in pids:
            _kill(pid)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"{vm} ends", 30.0)

    def hang(self, vm: str) -> None:
        if not (FREEZER / "cgroup.procs").exists():
            pytest.skip("no freezer of cgroup version 1, in which processes cannot be killed")
        self._hung = FREEZER / f"outlive-{os.getpid()}"
        self._hung.mkdir(exist_ok=True)
        for pid in self.hosts["a"].guests(vm):
            (self._hung / "cgroup.procs").write_text(str(pid))
        (self._hung / "freezer.state").write_text("FROZEN")

    def fail_start(self, vm: str) -> None:
        self.vm(vm)
        (self.state / f"{vm}.img").rename(self.state / f"{vm}.away")
        self._failing = vm, 1

    def fail_migration(self, phase: str) -> None:
        self._phase = phase
        if phase == "sent":
            for host, one in self._drivers:
                if host == "b":
                    one.signal(signal.SIGSTOP)

    def freeze(self, host: str = "a") -> None:
        self.hosts[host].lab.freeze()

    def thaw(self, host: str = "a") -> None:
        self.hosts[host].lab.freeze(False)

    def reboot(self, host: str = "a") -> None:
        for pid in self.hosts[host].guests():
            _kill(pid)
        self.thaw(host)  # so that the rest of it can end as well, if it stood still
        self.hosts[host].stop()
        self.hosts[host].start()

    def close(self) -> None:
        """Everything as it was before."""
        self._over.set()
        self._watcher.join()
        if self._hung is not None:
            (self._hung / "freezer.state").write_text("THAWED")
        self._failing = (self._failing[0], 0) if self._failing else None
        self._mend()
        for _, one in self._drivers:
            one.signal(signal.SIGCONT)
            one.close()
        for host in self.hosts.values():
            host.lab.freeze(False)
            for pid in host.guests():
                _kill(pid)
            until(lambda host=host: not host.guests(), "guests end", 30)
            if not host.libvirtd.pid:
                host.libvirtd.start()
        if self._autostart:
            self._virsh("undefine", "other")
        for name in self._foreign:
            with contextlib.suppress(LabError):
                self._virsh("destroy", name)
        if self._hung is not None:
            until(lambda: not (self._hung / "cgroup.procs").read_text(), "the freezer is empty", 30)
            self._hung.rmdir()

    def _mend(self) -> None:
        if self._failing is None:
            return
        vm, left = self._failing
        self._failing = (vm, left - 1) if left else None
        if not left:
            (self.state / f"{vm}.away").rename(self.state / f"{vm}.img")

    def _reached(self) -> None:
        """The target of a migration dies in this moment."""
        self.crash("", "b")

    def _move_outside(self) -> None:
        group = self.hosts["a"].group / "outside"
        group.mkdir(exist_ok=True)
        for pid in self.hosts["a"].guests():
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))

    def _watch(self) -> None:
        """See whether both sides of a guest go on running: in some looks in a row, as a switch-over is seen in one."""
        last: dict[tuple[str, int], int] = {}
        ran: dict[str, int] = {}
        while not self._over.wait(0.05):
            if self._outside:
                self._move_outside()
            now: dict[str, set[str]] = {}
            for host, one in self.hosts.items():
                for pid in one.guests():
                    time_used = used(pid)
                    if last.get((host, pid), time_used) < time_used:
                        with contextlib.suppress(OSError):
                            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                            now.setdefault(line.partition(f"id={MARK}")[2].partition("_")[0], set()).add(host)
                    last[host, pid] = time_used
            ran = {vm: ran.get(vm, 0) + 1 for vm, hosts in now.items() if len(hosts) == 2}
            self._both |= {vm for vm, looks in ran.items() if looks >= LOOKS}


class _Failing:
    """A driver whose migration stands still in a phase until its target is dead."""

    def __init__(self, driver: Remote, phase: str) -> None:
        self._driver = driver
        self._phase = phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def migrate(self, vm: str, target: str, **given: Any) -> None:
        await self._driver.call("stop_at", {"phase": self._phase})
        await self._driver.migrate(vm, target, **given)


@asynccontextmanager
async def real_hosts() -> AsyncIterator[RealHypervisors]:
    """The two hosts, for stories of their own."""
    made = RealHypervisors(two_hosts())
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def _libvirt(path: Path) -> AsyncIterator[harness.HypervisorHarness]:
    async with real_hosts() as made:
        yield made


LIBVIRT: Subject[harness.HypervisorHarness] = Subject("libvirt", _libvirt, partial(run_real, limit_s=180.0), "libvirt")
