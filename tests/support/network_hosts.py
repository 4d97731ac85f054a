"""Hosts as network namespaces, with bridges of managed networks between them, and guests on these."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x4000_0000
LEASE_S = 30
"""How long a guest asks for an address."""


def command(*argv: str, limit_s: float = 10.0) -> str:
    """Run a program to its good end; what it printed."""
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)
    assert ended.returncode == 0, f"{argv}: {ended.stderr or ended.stdout}"
    return ended.stdout


class NetworkHosts:
    """Namespaces ``<prefix>-<host>`` with one switch between them. ``bridges``: devices that every host has."""

    def __init__(self, prefix: str, hosts: tuple[str, ...], bridges: tuple[str, ...]) -> None:
        self.prefix, self.hosts, self.bridges = prefix, hosts, bridges
        self._made: list[str] = []

    def make(self) -> None:
        self._namespace("fab")
        for bridge in self.bridges:
            self.ip("fab", "link", "add", bridge, "type", "bridge")
            self.ip("fab", "link", "set", bridge, "up")
        for number, host in enumerate(self.hosts):
            self._namespace(host)
            for index, bridge in enumerate(self.bridges):
                self.ip(host, "link", "add", bridge, "type", "bridge")
                self.ip(host, "link", "set", bridge, "up")
                self._cable(host, f"u{index}", "fab", f"h{number}x{index}", bridge, bridge)

    def guest(self, name: str, bridge: str, host: str = "fab", mac: str = "") -> None:
        """A namespace with one interface ``eth0`` on a bridge."""
        self._namespace(name)
        self._cable(name, "eth0", host, f"g{len(self._made)}", "", bridge)
        if mac:
            self.ip(name, "link", "set", "eth0", "address", mac)

    def _namespace(self, name: str) -> None:
        full = f"{self.prefix}-{name}"
        subprocess.run(["ip", "netns", "del", full], capture_output=True, check=False)
        command("ip", "netns", "add", full)
        self._made.append(full)
        self.ip(name, "link", "set", "lo", "up")

    def _cable(self, one: str, device: str, other: str, far: str, bridge: str, far_bridge: str) -> None:
        self.ip(one, "link", "add", device, "type", "veth", "peer", "name", far, "netns", f"{self.prefix}-{other}")
        if bridge:
            self.ip(one, "link", "set", device, "master", bridge)
        self.ip(other, "link", "set", far, "master", far_bridge)
        self.ip(one, "link", "set", device, "up")
        self.ip(other, "link", "set", far, "up")

    def ip(self, name: str, *words: str) -> str:
        return command("ip", "-n", f"{self.prefix}-{name}", *words)

    def run(self, name: str, *argv: str, limit_s: float = 10.0) -> str:
        return command("ip", "netns", "exec", f"{self.prefix}-{name}", *argv, limit_s=limit_s)

    def lease(self, guest: str, folder: Path, *, hostname: str = "") -> str:
        """The address that dhclient gets; it is put on the interface, with a default route."""
        config, leases, pid = folder / f"{guest}.conf", folder / f"{guest}.leases", folder / f"{guest}.pid"
        config.write_text(
            f"timeout {LEASE_S};\nretry 1;\ninitial-interval 1;\nbackoff-cutoff 2;\n"
            + (f'send host-name "{hostname}";\n' * bool(hostname))
        )
        leases.write_text("")
        try:
            self.run(
                guest, "dhclient", "-1", "-4", "-cf", str(config), "-sf", "/bin/true", "-lf", str(leases),
                "-pf", str(pid), "eth0", limit_s=LEASE_S + 10.0,
            )  # fmt: skip
        finally:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), 9)
        text = leases.read_text()
        address = text.rpartition("fixed-address ")[2].partition(";")[0]
        router = text.rpartition("option routers ")[2].partition(";")[0]
        self.ip(guest, "addr", "flush", "dev", "eth0", "scope", "global")
        self.ip(guest, "addr", "add", f"{address}/24", "dev", "eth0")
        if router:
            self.ip(guest, "route", "replace", "default", "via", router)
        return address

    def lease6(self, guest: str, folder: Path, *, hostname: str) -> tuple[str, str]:
        """The IPv6 address that dhclient gets, and the DUID of the server; a lease from before is asked for again."""
        config, leases, pid = folder / f"{guest}.conf6", folder / f"{guest}.leases6", folder / f"{guest}.pid6"
        config.write_text(f'timeout {LEASE_S};\nsend fqdn.fqdn "{hostname}.";\nsend fqdn.server-update on;\n')
        leases.touch()
        try:
            self.run(
                guest, "dhclient", "-1", "-6", "-cf", str(config), "-sf", "/bin/true", "-lf", str(leases),
                "-pf", str(pid), "eth0", limit_s=LEASE_S + 10.0,
            )  # fmt: skip
        finally:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), 9)
        last = leases.read_text().rpartition("lease6 {")[2]
        address = last.rpartition("iaaddr ")[2].partition(" ")[0]
        return address, last.rpartition("dhcp6.server-id ")[2].partition(";")[0]

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """This thread, and what it starts, is on that host meanwhile."""
        with Path("/proc/self/ns/net").open() as before, Path(f"/run/netns/{self.prefix}-{name}").open() as there:
            enter(there.fileno())
            try:
                yield
            finally:
                enter(before.fileno())

    def close(self) -> None:
        for full in self._made:
            pids = subprocess.run(["ip", "netns", "pids", full], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", full], capture_output=True, check=False)


def enter(descriptor: int) -> None:
    """Be in the network namespace of this open file."""
    if _LIBC.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
