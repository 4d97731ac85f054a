"""A libvirtd on a laboratory host, as Debian ships it.

There is no systemd on these hosts. libvirt then makes the guests' cgroups itself, below the partition that their
definition names: ``/machine`` by default, so everything that a guard has to see is below ``GUESTS``.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from pathlib import Path

from lab.hosts import Host
from lab.processes import LabError, until

TCP_PORT = 16509
GUESTS = "/sys/fs/cgroup/machine"
"""The cgroup of all guests, as the host sees it."""
SERVICE = "20-libvirtd"

ALLOWED: dict[str, list[str]] = {
    "diskPaths": ["/"],
    "firmwarePaths": ["/"],
    "consolePaths": ["/"],
    "hostDevices": ["user"],
}
"""Settings of the section ``libvirt``: guests of a lab may have whatever the lab makes, which lies below its folder."""


class Libvirtd:
    """The hypervisor service of one host."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def make(self, env: Mapping[str, str] | None = None, **settings: str) -> None:
        """Its configuration, and its place among the host's services. ``settings`` are lines of ``qemu.conf``."""
        host = self.host
        host.make()
        etc = host.folder / "etc/libvirt"
        for name in ("qemu/networks/autostart", "qemu/autostart", "nwfilter", "secrets", "storage", "hooks"):
            (etc / name).mkdir(parents=True, exist_ok=True)
        for left in ("qemu/networks/default.xml", "qemu/networks/autostart/default.xml"):
            (etc / left).unlink(missing_ok=True)
        same = uuid.uuid5(uuid.NAMESPACE_DNS, f"{host.switch.prefix}.{host.name}.libvirt")
        _write(
            etc / "libvirtd.conf",
            {
                "listen_tls": "0",
                "listen_tcp": "1",
                "auth_tcp": '"none"',
                "auth_unix_ro": '"none"',
                "auth_unix_rw": '"none"',
                "unix_sock_group": '"root"',
                "host_uuid": f'"{same}"',
                "log_outputs": '"2:stderr"',
                "keepalive_interval": "2",
                "keepalive_count": "3",
            },
        )
        _write(
            etc / "qemu.conf",
            {
                "user": '"root"',
                "group": '"root"',
                "security_driver": '"none"',
                "namespaces": "[]",
                "dynamic_ownership": "0",
                "remember_owner": "0",
                "stdio_handler": '"file"',
                "migration_address": f'"{host.address}"',
                "migration_host": f'"{host.address}"',
                "vnc_listen": '"127.0.0.1"',
                **settings,
            },
        )
        host.add_service(SERVICE, ["/usr/sbin/libvirtd", "--listen"], env)

    def start(self, limit_s: float = 90.0) -> None:
        """Give the host power and wait until libvirtd answers."""
        if not (self.host.folder / f"services/{SERVICE}.json").exists():
            self.make()
        self.host.power_on()
        self.host.ask("start libvirtd")
        until(self.answers, f"libvirtd of {self.host.name} answers; see {self.host.folder}/log/libvirtd.log", limit_s)

    def stop(self) -> None:
        """End it; guests go on."""
        self.host.ask("stop libvirtd")

    @property
    def pid(self) -> int:
        """As the machine numbers it; 0 where it does not run."""
        return self.host.services().get("libvirtd", 0)

    @property
    def socket(self) -> Path:
        """Its socket, as seen from outside of the host. The path changes with every boot and is always short."""
        return Path(f"/proc/{self.host.pid}/root/run/libvirt/libvirt-sock")

    @property
    def uri(self) -> str:
        """By which programs of this machine reach it; on the host it is ``qemu:///system``."""
        return f"qemu+unix:///system?socket={self.socket}"

    def virsh(self, *words: str) -> str:
        """What ``virsh`` on the host prints."""
        return self.host.run("virsh", "-q", *words)

    def answers(self) -> bool:
        """Whether it takes requests."""
        with contextlib.suppress(LabError):
            return bool(self.host.run("virsh", "-q", "version", limit_s=10))
        return False


def migration_uri(target: Host) -> str:
    """By which the libvirtd of another host reaches this one for a migration between peers."""
    return f"qemu+tcp://{target.address}/system"


def _write(path: Path, settings: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
