"""What was asked for, on disk: one folder for each VM that is being started or runs here.

``FOLDER/<digest of the VM>/`` holds ``run.json``, ``<run>/`` with the sockets of its QEMU, ``created`` once its
creation has ended well, ``process`` once its QEMU was seen, ``fate`` of one that waited for a guest, and
``moving`` while it is sent elsewhere. The folder ``<run>`` is the gate of a creation: QEMU cannot start without
it, and it can be removed only while no QEMU of that run is there. So a process that has removed it knows that the
creation never happens any more, however long libvirt queues it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base import InUse, Refused, Unavailable
from outlive.drivers.libvirt.processes import GuestProcess
from outlive.resources import Vnc

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,47}")
RUN, CREATED, PROCESS, FATE, MOVING = "run.json", "created", "process", "fate", "moving"
SOCKETS: Final = ("qmp", "watch")
"""Two monitors of each QEMU: for questions, and for events."""
PLAIN, POST_COPY = "plain", "post-copy"
"""How the last part of a guest was let go that is sent elsewhere."""
PATH_LIMIT: Final = 107
"""Of a Unix socket."""


class DomainRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One run of a VM, as the process that started it wrote it down."""

    vm: str
    run_id: str
    epoch: int
    creator: int
    """Process number of the daemon that started it, …"""
    creator_started: str
    """… and when that one was started."""
    incoming: bool = False
    """Whether it was to receive a guest, and has not begun to run that yet."""
    listens: str = ""
    """Where it waits for the state of a guest: ``ADDRESS:PORT``."""
    post_copy: bool = False
    """Whether it may be received by post-copy, and is not known to have all of its memory."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    vnc: Vnc | None = None
    macvtap: bool = False
    """Whether it has macvtap devices, which libvirt leaves down until it lets the guest run itself."""


class Sending(NamedTuple):
    """Who sends it elsewhere, and how far that is."""

    pid: int
    started: str
    last: str = ""
    """How its last part was let go: from then on it is handed over. Empty: not yet."""


class Runs:
    """See the module."""

    def __init__(self, folder: str, user: str) -> None:
        self.folder = Path(folder)
        self._owner: tuple[int, int] | None = None
        if os.geteuid() == 0:
            with contextlib.suppress(KeyError):
                found = pwd.getpwnam(user)
                self._owner = found.pw_uid, found.pw_gid

    def vm_folder(self, vm: str) -> Path:
        """The folder of a VM."""
        return self.folder / hashlib.sha256(vm.encode()).hexdigest()[:16]

    def socket_path(self, vm: str, run_id: str, name: str) -> str:
        """The path of one of its sockets; ``Refused`` where that is too long for the kernel."""
        path = str(self.vm_folder(vm) / run_id / name)
        if len(path.encode()) > PATH_LIMIT:
            raise Refused(f"{path} is too long for a socket", remedy="set a shorter libvirt.folder")
        return path

    def list_runs(self) -> list[DomainRun]:
        """Of every VM, in the order of their names."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if not entry.name.startswith(".") and (run := _read(Path(entry.path))) is not None:
                    found.append(run)
        return sorted(found, key=lambda run: run.vm)

    def find_run(self, vm: str) -> DomainRun | None:
        """Of that VM."""
        return _read(self.vm_folder(vm))

    def claim(self, run: DomainRun) -> None:
        """Open the gate of a new run; ``InUse`` where there is a run of this VM."""
        if not RUN_ID.fullmatch(run.run_id):
            raise Refused(f"{run.run_id!r} is no id of a run", remedy="write letters, digits, dots and dashes")
        self.socket_path(run.vm, run.run_id, SOCKETS[-1])
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f".new-{run.creator}-{run.run_id}"
        shutil.rmtree(new, ignore_errors=True)
        (new / run.run_id).mkdir(parents=True)
        if self._owner is not None:
            os.chown(new / run.run_id, *self._owner)
        (new / RUN).write_bytes(msgspec.json.encode(run))
        try:
            new.rename(self.vm_folder(run.vm))
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            raise InUse(f"a run of {run.vm} is on this host already", remedy="destroy it first") from None

    def change(self, run: DomainRun, **changes: Any) -> DomainRun:
        """Write down what is known of it now, and answer that; ``OSError`` where it was removed."""
        now = self.find_run(run.vm)
        if now is None or now.run_id != run.run_id:
            raise FileNotFoundError(run.vm)
        now = msgspec.structs.replace(now, **changes)
        self._put(run.vm, RUN, msgspec.json.encode(now))
        return now

    def _put(self, vm: str, name: str, content: bytes) -> None:
        """Write one of its files as a whole."""
        new = self.vm_folder(vm) / f"{name}.new"
        new.write_bytes(content)
        new.rename(self.vm_folder(vm) / name)

    def is_created(self, run: DomainRun) -> bool:
        """Whether its creation has ended well."""
        return (self.vm_folder(run.vm) / CREATED).exists()

    def mark_created(self, run: DomainRun) -> None:
        """Its creation has ended well; ``OSError`` where it was removed meanwhile."""
        if _read(self.vm_folder(run.vm)) is None:
            raise FileNotFoundError(run.vm)
        (self.vm_folder(run.vm) / CREATED).touch()

    def note(self, run: DomainRun, process: GuestProcess) -> None:
        """Write down which process it has, for readers that come after its command line is gone."""
        path = self.vm_folder(run.vm) / PROCESS
        if not path.exists():
            with contextlib.suppress(OSError):  # it was removed meanwhile, or is noted at the next look
                new = path.with_name(f"{PROCESS}.{process.run_id}.{os.getpid()}")
                new.write_bytes(msgspec.json.encode(process))
                new.rename(path)

    def list_processes(self) -> list[GuestProcess]:
        """Those that were written down, of every run."""
        found = []
        for run in self.list_runs():
            with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                one = msgspec.json.decode((self.vm_folder(run.vm) / PROCESS).read_bytes(), type=GuestProcess)
                if (one.vm, one.run_id) == (run.vm, run.run_id):
                    found.append(one)
        return found

    def close_gate(self, run: DomainRun) -> bool:
        """Whether no QEMU of that run is there, and none will ever be."""
        try:
            (self.vm_folder(run.vm) / run.run_id).rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def find_sending(self, vm: str) -> Sending | None:
        """Which process sends it elsewhere; ``None``: nobody does."""
        with contextlib.suppress(OSError, ValueError):
            pid, started, *last = (self.vm_folder(vm) / MOVING).read_text().split()
            return Sending(int(pid), started, *last)
        return None

    def mark_moving(self, vm: str, sending: Sending) -> None:
        """That process sends it elsewhere, and is so far. ``Unavailable`` where that cannot be written."""
        try:
            self._put(vm, MOVING, " ".join(map(str, sending)).encode())
        except OSError as error:
            raise Unavailable(f"{vm} is not moved: {error}", remedy="look whether it is there") from None

    def unmark_moving(self, vm: str) -> None:
        """It is not being sent any more, and was not."""
        (self.vm_folder(vm) / MOVING).unlink(missing_ok=True)

    def remove(self, run: DomainRun) -> None:
        """Nothing of the run is there any more: forget it, unless another run has come since."""
        home = self.vm_folder(run.vm)
        now = _read(home)
        if now is None or now.run_id != run.run_id:
            return
        gone = self.folder / f".gone-{os.getpid()}-{run.run_id}"
        with contextlib.suppress(OSError):
            home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def decide(self, run: DomainRun, fate: str) -> str:
        """What becomes of a run that waits for a guest, once for all: ``fate``, unless that was decided before."""
        path = self.vm_folder(run.vm) / FATE
        new = path.with_name(f"{FATE}.{fate}.{os.getpid()}")
        try:
            new.write_text(fate)
            os.link(new, path)
        except FileExistsError:
            return path.read_text()
        except FileNotFoundError:
            return "removed"
        finally:
            new.unlink(missing_ok=True)
        return fate

    def read_fate(self, run: DomainRun) -> str:
        """What was decided; empty: nothing yet."""
        with contextlib.suppress(OSError):
            return (self.vm_folder(run.vm) / FATE).read_text()
        return ""


def _read(home: Path) -> DomainRun | None:
    try:
        return msgspec.json.decode((home / RUN).read_bytes(), type=DomainRun)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
