"""How the daemon of a host reaches libvirt, and where guests are put."""

from __future__ import annotations

import posixpath
from ipaddress import ip_address
from typing import Literal

import msgspec

from outlive.runtime import Duration

FIRMWARE = (
    "/usr/share/OVMF",
    "/usr/share/AAVMF",
    "/usr/share/edk2",
    "/usr/share/edk2-ovmf",
    "/usr/share/ovmf",
    "/usr/share/qemu",
    "/usr/share/qemu-efi-aarch64",
    "/usr/share/seabios",
)
"""Where distributions put it."""
PATHS_LIMIT = 64


class LibvirtSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The section ``libvirt`` of a host's configuration."""

    uri: str = ""
    """URI of the host's libvirt, such as ``qemu:///system``; empty: this host runs no VM."""
    kind: Literal["kvm", "qemu"] = "kvm"
    """Hypervisor of VMs without a definition; ``qemu`` emulates."""
    slice: str = "/sys/fs/cgroup/machine.slice"
    """The cgroup above all guests: the guard's ``--cgroup``."""
    partition: str = ""
    """libvirt's partition of that cgroup; empty: its default, which is ``machine.slice`` under systemd."""
    folder: str = "/run/outlive/guests"
    """Folder of running guests, on a file system that a boot empties."""
    user: str = "libvirt-qemu"
    """User of QEMU (``user`` of qemu.conf)."""
    console_folder: str = "/var/log/outlive/console"
    """Where consoles are logged."""
    vnc_listen: str = "127.0.0.1"
    """Address of the screens."""
    migration_address: str = ""
    """Address for incoming live moves; empty: ``host.addresses.cluster``. Without both there are none."""
    migration_ports: tuple[int, int] = (49152, 49215)
    """First and last port for incoming moves."""
    migration_tls: str = ""
    """Folder of certificates for moves over TLS (``ca-cert.pem``, ``server-*.pem``, ``client-*.pem``)."""
    disk_paths: tuple[str, ...] = ()
    """Folders and devices that guests may have as disks, media, folders and kept memory (``/var/lib/libvirt/images``,
    ``/dev/vg0``); not for Ceph and DRBD."""
    firmware_paths: tuple[str, ...] = FIRMWARE
    """Folders of firmware, kernels and ROMs for guests."""
    console_paths: tuple[str, ...] = ()
    """Folders for files of serial ports and consoles."""
    socket_paths: tuple[str, ...] = ()
    """Folders of sockets for ports and interfaces."""
    host_devices: tuple[str, ...] = ()
    """Devices that guests may have (docs/reference/definitions.md#host-devices)."""
    ceph_user: str = ""
    """User of Ceph, without ``client.``, for images without ``<auth>``; empty: ``admin``."""
    ceph_secret: str = ""
    """UUID of libvirt's secret with that user's key (``virsh secret-list``)."""
    call_limit: Duration = Duration(15.0)
    """How long libvirt may take to answer, or to end a guest."""
    create_limit: Duration = Duration(300.0)
    """How long it may take to start one."""
    threads: int = 16
    """Concurrent calls of libvirt; more are refused."""
    start_service: str = "libvirt"
    """The command that starts libvirt; ``libvirt``: its units that are enabled, by systemctl."""

    def __post_init__(self) -> None:
        first, last = self.migration_ports
        if not 1024 <= first <= last <= 65535:
            raise ValueError(f"migrationPorts {first} to {last} are no ports; write two from 1024 to 65535")
        if not 2 <= self.threads <= 256:
            raise ValueError(f"threads {self.threads}; write 2 to 256")
        for name in ("disk_paths", "firmware_paths", "console_paths", "socket_paths"):
            places = getattr(self, name)
            wrong = next((one for one in places if not one.startswith("/") or one != posixpath.normpath(one)), None)
            if wrong is not None or len(places) > PATHS_LIMIT:
                what = f"{wrong} is no path" if wrong is not None else f"{len(places)} paths"
                raise ValueError(f"{name}: {what}; write at most {PATHS_LIMIT} from / on, without .. or / at the end")
        if len(self.host_devices) > PATHS_LIMIT or not all(self.host_devices):
            raise ValueError(f"hostDevices names {len(self.host_devices)} devices; write at most {PATHS_LIMIT}")
        if bool(self.ceph_user) != bool(self.ceph_secret):
            raise ValueError("cephUser and cephSecret belong together; write both or none of them")
        if why := unreachable_reason(self.migration_address):
            raise ValueError(
                f"migrationAddress {self.migration_address} {why}; write this host's own, as others reach it"
            )


def unreachable_reason(address: str) -> str:
    """Why no guest can be sent to this address of a host, whatever its networks are; empty: it may be good."""
    try:
        found = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return "is this machine itself to every host" if address == "localhost" else ""
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_unspecified:
        return "is no address of one host"
    if found.is_loopback:
        return "is this machine itself to every host"
    return "is of many hosts" if found.is_multicast or found == ip_address("255.255.255.255") else ""
