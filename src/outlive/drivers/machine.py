"""The machine under the daemon, as Linux shows it: ``MachinePort`` (``outlive.node.ports.machine``).

A machine is the identity of its installation together with that of its board, where the firmware tells it: a disk that
was copied into another machine, or a virtual machine that was cloned, is another machine, whatever its copied files
say. What the daemon remembers stands in one small file in its state directory, beside the lock that admits one daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BOOT_ID, BadInput, Unavailable
from outlive.node.fencing import is_unset, system_key
from outlive.node.membership import RememberedMembership
from outlive.resources import Amounts, Capabilities

MACHINE_ID: Final = "/etc/machine-id"
BOARD_ID: Final = "/sys/class/dmi/id/product_uuid"
"""Of the board, readable by root; what several machines have in common is none (``is_unset``)."""
PRESSURE: Final = "/proc/pressure/io"
MEMORY: Final = "/proc/meminfo"
PROCESSORS: Final = "/proc/stat"
RELEASE: Final = "/etc/os-release"
STATE_DIR: Final = "/var/lib/outlive-node"
MEMBERSHIP_FILE: Final = "membership.json"
LOCK_FILE: Final = "daemon.lock"
LOCK_VARIABLE: Final = "OUTLIVE_NODE_LOCK"
"""In the environment of a new version of the daemon that takes the place of the old one in the same process: the file
descriptor of its lock."""
FILE_BYTES: Final = 4096
"""The most that is read of any of these files."""

_FULL = re.compile(r"^full avg10=([0-9.]+)", re.MULTILINE)
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_PRETTY = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_HEX = re.compile(r"[0-9a-f]{32}\Z")


class HostSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``host`` of a host's configuration: which host this is, and what it has for VMs."""

    name: str = ""
    """Name of its ``Hypervisor``; empty: the machine's short host name."""
    mode: str = "hypervisor"
    """Mode at its first registration: ``hypervisor``, or ``coordinator`` for a host that also fences."""
    labels: dict[str, str] = {}
    """Labels at its first registration, such as ``topology.kubernetes.io/zone``."""
    addresses: dict[str, str] = {}
    """Its addresses by network: ``cluster`` (live migration), ``storage`` (the clients of its disks)."""
    capacity: dict[str, str] = {}
    """Capacity for VMs, such as ``{cpu: "16", memory: 64Gi}``; else measured."""
    reserved: dict[str, str] = {}
    """Measured amounts that are not for VMs."""
    state_dir: str = STATE_DIR
    """Folder of the daemon's membership, on a durable disk of this machine."""
    machine_id_file: str = MACHINE_ID
    """Identity of the installation."""
    board_id_file: str = BOARD_ID
    """Identity of the board, which its BMC reports too."""
    boot_id_file: str = BOOT_ID
    """File whose content is new at every boot, for containers."""

    def __post_init__(self) -> None:
        if self.mode not in ("hypervisor", "coordinator"):
            raise ValueError(f"mode {self.mode!r} is none: write hypervisor or coordinator")
        for name, amounts in (("capacity", self.capacity), ("reserved", self.reserved)):
            try:
                Amounts.parse(amounts)
            except BadInput as error:
                raise ValueError(f"{name}: {error.message} ({error.remedy})") from None


class _RememberedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: of which host, and what was remembered."""

    host: str
    remembered: RememberedMembership


class LinuxMachine:
    """See the module. ``host``: the name by which this machine is a member."""

    def __init__(self, settings: HostSection, host: str) -> None:
        self._settings = settings
        self._host = host
        self._state = Path(settings.state_dir)
        self._lock_fd = -1
        self._machine_id = _machine_id(settings.machine_id_file, settings.board_id_file)
        self._boot_id = _read_word(settings.boot_id_file)
        found = _TOTAL.search(_read_file(MEMORY))
        measured = {"cpu": 1000 * (os.cpu_count() or 1), "memory": 1024 * int(found.group(1)) if found else 0}
        reserved = Amounts.parse(settings.reserved)
        left = {name: max(0, amount - reserved.get(name, 0)) for name, amount in measured.items()}
        self._capacity = Amounts({**left, **Amounts.parse(settings.capacity)})
        self._writing = asyncio.Lock()
        self._times = 0, 0
        """How long all processors together were busy, and how long they were there, at the last call of
        ``read_usage``.
        """

    def prepare(self) -> None:
        """Make the state directory; ``BadInput`` where this machine was a member by another name."""
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"cannot be made: {error.strerror}", place=str(self._state), remedy="name another host.stateDir"
            ) from None
        try:
            kept = self._read()
        except (OSError, Unavailable):
            return  # the daemon says so for as long as it lasts
        if kept is not None and kept.host != self._host:
            raise BadInput(
                f"this machine is a member as {kept.host} and is now called {self._host}",
                place=str(self._file),
                remedy=f"set host.name: {kept.host} in node.yaml; to give it another name, drain {kept.host}, "
                "delete its Hypervisor and remove this file",
            )

    def machine_id(self) -> str:
        """Of the installation and the board."""
        return self._machine_id

    def boot_id(self) -> str:
        """As it was when this process began: a process never sees two boots."""
        return self._boot_id

    async def read_remembered(self) -> RememberedMembership | None:
        """From the file; ``Unavailable`` where it is not what was written."""
        kept = await asyncio.to_thread(self._read)
        return None if kept is None else kept.remembered

    async def remember(self, remembered: RememberedMembership) -> None:
        """To the file, synced."""
        async with self._writing:
            await asyncio.to_thread(self._write, _RememberedFile(host=self._host, remembered=remembered))

    def lock(self) -> bool:
        """A lock of the file, which the kernel lets go with the process."""
        if self._lock_fd >= 0:
            return True
        inherited = self._inherited_lock()
        if inherited >= 0:
            self._lock_fd = inherited
            return True
        handle = os.open(self._state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock_fd = handle
        return True

    def pass_lock(self) -> dict[str, str]:
        """Variables by which the program that takes this one's place in the same process goes on with the lock."""
        if self._lock_fd < 0:
            return {}
        os.set_inheritable(self._lock_fd, True)
        return {LOCK_VARIABLE: str(self._lock_fd)}

    def read_capacity(self) -> Amounts:
        """As the settings say, else as measured, less what is reserved."""
        return self._capacity

    def read_capabilities(self) -> Capabilities:
        """As kernel and distribution say."""
        system = os.uname()
        try:
            named = _PRETTY.search(_read_file(RELEASE))
        except OSError:
            named = None
        name = system.sysname if named is None else named.group(1).strip()
        return Capabilities(cpu_arch=system.machine, cpus=os.cpu_count() or 0, kernel=system.release, os=name)

    def read_load(self) -> float:
        """Over the last minute."""
        return os.getloadavg()[0]

    def read_usage(self) -> Amounts | None:
        """From the kernel's own counts."""
        try:
            memory, stat = _read_file(MEMORY), _read_file(PROCESSORS)
            ticks = [int(word) for word in stat.partition("\n")[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        total, free = _TOTAL.search(memory), _AVAILABLE.search(memory)
        if total is None or free is None:
            return None
        now = sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idling, and waiting for disks, is not busy
        busy, passed = now[0] - self._times[0], now[1] - self._times[1]
        self._times = now
        share = busy / passed if passed > 0 else 0.0
        return Amounts(
            cpu=round(1000 * (os.cpu_count() or 1) * min(1.0, max(0.0, share))),
            memory=1024 * max(0, int(total.group(1)) - int(free.group(1))),
        )

    def disk_stall(self) -> float | None:
        """From the kernel's pressure figures, where it keeps them."""
        try:
            found = _FULL.search(_read_file(PRESSURE))
        except OSError:
            return None
        return None if found is None else min(1.0, float(found.group(1)) / 100)

    @property
    def _file(self) -> Path:
        return self._state / MEMBERSHIP_FILE

    def _read(self) -> _RememberedFile | None:
        try:
            raw = self._file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(raw, type=_RememberedFile)
        except msgspec.MsgspecError as error:
            raise Unavailable(
                f"is not what the daemon wrote: {error}",
                place=str(self._file),
                remedy="put it back from a backup; if there is none, have the host fenced, boot it and remove the file",
            ) from None

    def _write(self, kept: _RememberedFile) -> None:
        temporary = self._file.with_suffix(".new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            content = msgspec.json.encode(kept) + b"\n"
            while content:
                content = content[os.write(handle, content) :]
            os.fsync(handle)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(handle)
        temporary.replace(self._file)
        folder = os.open(self._state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _inherited_lock(self) -> int:
        """The lock's file as the program before this one in the same process has left it; -1: there is none."""
        text = os.environ.pop(LOCK_VARIABLE, "")
        if not text.isdecimal():
            return -1
        handle = int(text)
        try:
            same = os.path.samestat(os.fstat(handle), (self._state / LOCK_FILE).stat())
            if not same:
                return -1
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(handle, False)
        except OSError:
            return -1
        return handle


def _read_file(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - files of the kernel
        return file.read(FILE_BYTES)


def _read_word(path: str) -> str:
    try:
        word = _read_file(path).strip()
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", place=path, remedy="run the daemon as root") from None
    if not word or len(word.split()) != 1:
        raise BadInput("holds no identity", place=path, remedy="it must hold one word")
    return word


def _machine_id(path: str, board_path: str) -> str:
    identity = _read_word(path).lower()
    if not _HEX.match(identity) or identity == "0" * 32:
        raise BadInput(f"{identity[:40]!r} is no machine id", place=path, remedy="run systemd-machine-id-setup")
    try:
        board = system_key(_read_file(board_path))
    except FileNotFoundError:
        board = ""
    except OSError as error:  # with it at one time and without it at another, this would be two machines
        raise Unavailable(
            f"cannot be read: {error.strerror}", place=board_path, remedy="run the daemon as root"
        ) from None
    return f"{identity}.{board}" if _HEX.match(board) and not is_unset(board) else identity
