"""``DhcpPort`` with dnsmasq: one process for each network, their lease scripts, and the spool of what these write.

In the daemon's folder: ``script-<vni>`` run by dnsmasq, ``leases-<vni>`` with which a server starts, ``spool`` (what
scripts have written), ``taken`` (what the daemon has read of it and not yet stored), ``wake``. In the public one, since
dnsmasq gives up its rights: ``hosts-<vni>/`` with the reservations.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import Clock, deadline, get_logger
from outlive.drivers.services import lease_script
from outlive.drivers.services.bridges import device_number
from outlive.drivers.services.supervisor import Supervisor
from outlive.node.services import (
    DhcpFiles,
    LeaseChange,
    ServedLease,
    ServedNetwork,
    dhcp_arguments,
    lease_lines,
    needs_restart,
    reservation_files,
)

PROGRAM: Final = "dnsmasq"
INOTIFY_LIMIT: Final = Path("/proc/sys/fs/inotify/max_user_instances")
"""Each server watches its folder of reservations; the kernel's own limit is 128."""
INOTIFY_SPARE: Final = 256

_log = get_logger("services")


class DnsmasqServers:
    """See the module."""

    def __init__(
        self, folder: Path, public: Path, supervisor: Supervisor, clock: Clock, *, program: str = PROGRAM
    ) -> None:
        self._folder = folder
        self._public = public
        self._supervisor = supervisor
        self._clock = clock
        self._program = program
        self._served: dict[str, ServedNetwork] = {}
        """Networks whose server runs, or is started again by the supervisor."""
        self._bridges: dict[str, int] = {}
        """Of each of them the kernel's number of its bridge: a server listens on that device, and on no later one."""
        self._leases: dict[str, Callable[[], Collection[ServedLease]]] = {}
        self._wake: socket.socket | None = None
        self._broken: dict[str, str] = {}

    async def serve(self, network: ServedNetwork, leases: Callable[[], Collection[ServedLease]]) -> None:
        """Have a server run for the network as it is now."""
        name, before, bridge = network.name, self._served.get(network.name), device_number(network.bridge)
        self._leases[name] = leases
        same_bridge = before is not None and bridge == self._bridges[name]
        if same_bridge and before == network and name not in self._broken:
            return
        stays = same_bridge and before is not None and not needs_restart(before, network)
        try:
            changed = self._write_hosts(network)
            if not stays:
                await self._start(network, bridge)
        except OSError as error:
            self._broken[name] = f"{error.filename}: {error.strerror}"
            return
        self._broken.pop(name, None)
        self._served[name] = network
        if stays and changed:
            self._supervisor.send_signal(self._program_name(name), signal.SIGHUP)

    async def _start(self, network: ServedNetwork, bridge: int) -> None:
        """Start its server, after the one that runs has ended. ``OSError``: none runs."""
        name = network.name
        if self._served.pop(name, None) is not None:
            await self._supervisor.stop([self._program_name(name)])
        raise_limit(INOTIFY_LIMIT, 2 * len(self._served) + INOTIFY_SPARE)
        script = self._folder / f"script-{network.vni}"
        leases = shlex.quote(str(self._folder / f"leases-{network.vni}"))
        python = [sys.executable, "-I", "-S", lease_script.__file__, str(self._folder), str(network.vni)]
        lines = [
            "#!/bin/sh",
            f'if [ "$1" = init ]; then cat {leases}; exit 0; fi',  # by the shell alone, which is quick
            f'exec {shlex.join(python)} "$@"',
            "",
        ]
        script.write_text("\n".join(lines), encoding="utf-8")
        script.chmod(0o755)
        files = DhcpFiles(hosts=str(self._hosts_path(network)), script=str(script))
        argv = (self._program, *dhcp_arguments(network, files))
        self._served[name], self._bridges[name] = network, bridge
        self._supervisor.keep(self._program_name(name), argv, prepare=lambda: self._write_leases(name))

    async def end(self, names: Collection[str]) -> None:
        """Stop the servers of these networks."""
        await self._supervisor.stop([self._program_name(name) for name in names])
        for name in names:
            self._served.pop(name, None)
            for kept in (self._leases, self._broken, self._bridges):
                kept.pop(name, None)

    def list_failures(self) -> Mapping[str, str]:
        """Networks without a server → why."""
        dead = self._supervisor.list_failures()
        found = {name: dead[key] for name in self._served if (key := self._program_name(name)) in dead}
        return found | self._broken

    async def take_changes(self) -> Sequence[LeaseChange]:
        """What scripts have written and the store may not have."""
        return await asyncio.to_thread(self._take)

    async def forget_changes(self) -> None:
        """Drop what was taken."""
        (self._folder / "taken").unlink(missing_ok=True)

    async def wait_changed(self, limit_s: float) -> None:
        """Return when a script has written something; it is not noticed at once where no socket can be made for it."""
        try:
            wake = self._wake = self._wake if self._wake is not None else self._listen()
            with contextlib.suppress(TimeoutError), deadline(limit_s):
                await asyncio.get_running_loop().sock_recv(wake, 16)
        except OSError as error:
            _log.warning("services.leases_not_waited_for", why=str(error))
            await self._clock.sleep(limit_s)

    def close(self) -> None:
        """Let the socket go."""
        if self._wake is not None:
            self._wake.close()
            self._wake = None

    def _listen(self) -> socket.socket:
        self._prepare_folder()
        path = self._folder / "wake"
        path.unlink(missing_ok=True)
        wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            wake.bind(str(path))
        except OSError:
            wake.close()
            raise
        return wake

    def _take(self) -> list[LeaseChange]:
        """Move the spool aside, after what was taken before, and read it; a line that is no change is skipped."""
        self._prepare_folder()
        spool, taken = self._folder / "spool", self._folder / "taken"
        with (self._folder / "spool.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if spool.exists():
                if taken.exists():
                    with taken.open("ab") as target:
                        target.write(b"\n" + spool.read_bytes())  # what a crash has cut off here spoils no other line
                        os.fdatasync(target.fileno())
                    spool.unlink()
                else:
                    spool.rename(taken)
        changes: list[LeaseChange] = []
        if not taken.exists():
            return changes
        for line in filter(None, taken.read_bytes().splitlines()):
            try:
                changes.append(msgspec.json.decode(line, type=LeaseChange))
            except msgspec.DecodeError as error:
                _log.warning("services.lease_not_understood", why=str(error))
        return changes

    def _prepare_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _program_name(self, name: str) -> str:
        return f"dhcp {name}"

    def _hosts_path(self, network: ServedNetwork) -> Path:
        return self._public / f"hosts-{network.vni}"

    def _write_hosts(self, network: ServedNetwork) -> bool:
        """Write the reservations; whether something was removed or changed, which needs a signal."""
        folder = self._hosts_path(network)
        self._prepare_folder()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        wanted, changed = reservation_files(network), False
        for path in folder.iterdir():
            if path.name not in wanted:
                path.unlink()
                changed = True
        for name, text in wanted.items():
            path = folder / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                changed = changed or path.exists()
                path.write_text(text, encoding="utf-8")
                path.chmod(0o644)
        return changed

    async def _write_leases(self, name: str) -> None:
        network = self._served[name]
        path = self._folder / f"leases-{network.vni}"
        leases = self._leases[name]() if name in self._leases else ()
        path.write_text(lease_lines(network, leases), encoding="utf-8")


def raise_limit(file: Path, least: int) -> None:
    """Have a limit of the kernel be at least so much, if this process may change it."""
    try:
        if int(file.read_text(encoding="ascii")) < least:
            file.write_text(f"{least}\n", encoding="ascii")
    except (OSError, ValueError) as error:
        _log.warning("services.limit_not_raised", file=str(file), least=least, why=str(error))
