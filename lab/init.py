"""Pid 1 of a laboratory host: mounts what is the host's own, starts its services and starts them again when they die.

Run as ``python -I init.py FOLDER`` in fresh namespaces (``lab.hosts``); standard library only. ``FOLDER`` is the
host's: ``etc``, ``var`` and ``run`` lie over those of the machine, everything else of the file system is shared, so a
disk file lies at the same path on every host. ``services/*.json`` are started in the order of their names, each in a
cgroup of its own below ``system.slice``. ``run/init.sock`` takes ``start NAME``, ``stop NAME``, ``list``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MS_RDONLY, MS_BIND, MS_REC, MS_PRIVATE = 1, 4096, 16384, 1 << 18
MNT_DETACH = 2
STOP_S = 5.0
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """The system call. Raises ``OSError``."""
    words = [text.encode() or None for text in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def make_root(folder: Path, shared: list[str]) -> None:
    """Give this mount namespace a root whose ``etc``, ``var``, ``run``, ``proc`` and ``sys`` are the host's own."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    root = folder / "root"
    root.mkdir(exist_ok=True)
    mount("tmpfs", str(root), "tmpfs", data="size=1m,mode=755")
    own = {"etc", "var", "run", "proc", "sys"}
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        target = root / entry.name
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            target.mkdir()
            if entry.name not in own:
                mount(entry.path, str(target), flags=MS_BIND | MS_REC)
    for name in ("etc", "var", "run"):
        (root / name).mkdir(exist_ok=True)
        mount(str(folder / name), str(root / name), flags=MS_BIND)
    for path in shared:
        target = root / path.lstrip("/")
        if path.split("/")[1] in own:
            target.mkdir(parents=True, exist_ok=True)
            mount(path, str(target), flags=MS_BIND | MS_REC)
    for name, kind in (("proc", "proc"), ("sys", "sysfs")):
        (root / name).mkdir(exist_ok=True)
        mount(kind, str(root / name), kind)
    if not (root / "sys/fs/cgroup").is_dir():
        raise OSError("no /sys/fs/cgroup in this kernel")
    mount("cgroup2", str(root / "sys/fs/cgroup"), "cgroup2")
    mount(str(folder / "boot_id"), str(root / "proc/sys/kernel/random/boot_id"), flags=MS_BIND)
    os.chdir(root)
    if _libc.syscall(155, b".", b".") != 0:  # pivot_root, the old root below the new one
        raise OSError(ctypes.get_errno(), "pivot_root")
    if _libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount of the old root")
    os.chdir("/")


def into_group(name: str) -> None:
    """Put this process into a cgroup below the services'."""
    group = Path("/sys/fs/cgroup/system.slice", name)
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.procs").write_text("0")


class Services:
    """What runs on this host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}
        """When a service that ended is started again."""
        self._stopping: dict[str, tuple[float, socket.socket]] = {}

    def names(self) -> list[str]:
        """All of them, in the order of their start."""
        return sorted(path.stem for path in (self._folder / "services").glob("*.json"))

    def named(self, word: str) -> str:
        """The whole name (``20-libvirtd``) of a service that is named with or without its number."""
        return next((name for name in self.names() if word in (name, name.partition("-")[2])), "")

    def start(self, name: str) -> None:
        """Start it unless it runs."""
        if name in self._running:
            return
        self._due.pop(name, None)
        said = self._read(name)
        with (self._folder / "log" / f"{name.partition('-')[2] or name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                said["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **said.get("env", {})},
                start_new_session=True,
                preexec_fn=lambda: into_group(name),
            )

    def stop(self, name: str, asker: socket.socket) -> None:
        """Ask it to end and answer once it has."""
        self._due.pop(name, None)
        made = self._running.get(name)
        if made is None:
            answer(asker, "stopped")
            return
        made.terminate()
        self._stopping[name] = (time.monotonic() + STOP_S, asker)

    def look(self) -> float:
        """Do what is due; how long to wait for the next, at most."""
        now = time.monotonic()
        self._reap()
        for name, (deadline, asker) in list(self._stopping.items()):
            if name not in self._running:
                del self._stopping[name]
                answer(asker, "stopped")
            elif now > deadline:
                self._running[name].kill()
        for name, due in list(self._due.items()):
            if now >= due:
                self.start(name)
        waits = [due - now for due in self._due.values()] + [0.05 for _ in self._stopping]
        return max(0.0, min([*waits, 60.0]))

    def listed(self) -> str:
        """Each with its process number, 0 where it does not run."""
        return " ".join(f"{name}={self._running[name].pid if name in self._running else 0}" for name in self.names())

    def _read(self, name: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self._folder / "services" / f"{name}.json").read_text())
        return said

    def _reap(self) -> None:
        """The services that ended, and every orphan of this pid namespace."""
        ended = {}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                ended[pid] = status
        for name, made in list(self._running.items()):
            if made.pid in ended:
                made.returncode = os.waitstatus_to_exitcode(ended[made.pid])
                del self._running[name]
                again_s = self._read(name).get("again_s")
                print(f"{name} ended with {made.returncode}", flush=True)
                if again_s is not None and name not in self._stopping:
                    self._due[name] = time.monotonic() + again_s


def answer(asker: socket.socket, text: str) -> None:
    """One line; the caller may have gone."""
    with contextlib.suppress(OSError):
        asker.sendall(text.encode() + b"\n")
    asker.close()


def serve(services: Services, asker: socket.socket) -> None:
    """One request."""
    asker.settimeout(1.0)
    try:
        verb, _, word = asker.recv(256).decode().strip().partition(" ")
    except OSError:
        asker.close()
        return
    name = services.named(word) if word else ""
    if verb == "list":
        answer(asker, services.listed())
    elif not name:
        answer(asker, f"no service {word!r}")
    elif verb == "start":
        services.start(name)
        answer(asker, "started")
    elif verb == "stop":
        services.stop(name, asker)
    else:
        answer(asker, f"no request {verb!r}")


def main() -> None:
    """Boot, and never end."""
    folder = Path(sys.argv[1])
    make_root(folder, sys.argv[2:])
    socket.sethostname(folder.name)
    into_group("init.scope")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("/run/init.sock")
    listening.listen(16)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    services = Services(folder)
    for name in services.names():
        services.start(name)
    while True:
        ready, _, _ = select.select([listening.fileno(), reader], [], [], services.look())
        if reader in ready:
            os.read(reader, 4096)
        if listening.fileno() in ready:
            serve(services, listening.accept()[0])


if __name__ == "__main__":
    main()
