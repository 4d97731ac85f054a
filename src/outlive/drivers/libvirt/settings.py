"""How the daemon of a host reaches libvirt, and where guests are put."""

from __future__ import annotations

import posixpath
from ipaddress import ip_address
from typing import Literal

import msgspec

from outlive.runtime.units import Duration

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
    """Of the host's own libvirt, such as ``qemu:///system``; empty: this host runs no virtual machine."""
    kind: Literal["kvm", "qemu"] = "kvm"
    """What runs VMs that have no definition of their own; ``qemu`` emulates."""
    slice: str = "/sys/fs/cgroup/machine.slice"
    """The cgroup that all guests are below: the same as the guard's ``--cgroup``."""
    partition: str = ""
    """libvirt's partition of that cgroup; empty: its default, which is ``machine.slice`` under systemd."""
    folder: str = "/run/outlive/guests"
    """What is kept of guests while they run; on a file system that a boot empties."""
    user: str = "libvirt-qemu"
    """As whom QEMU runs (``user`` of qemu.conf); it gets its folder below ``folder``. Unknown here: root."""
    console_folder: str = "/var/log/outlive/console"
    """Where consoles are logged."""
    vnc_listen: str = "127.0.0.1"
    """Address of the screens."""
    migration_address: str = ""
    """Address to which running guests are sent; empty: ``host.addresses.cluster``. Without both none is sent here."""
    migration_ports: tuple[int, int] = (49152, 49215)
    """First and last port for guests that arrive."""
    migration_tls: str = ""
    """Folder of certificates for moves over TLS (``ca-cert.pem``, ``server-*.pem``, ``client-*.pem``)."""
    disk_paths: tuple[str, ...] = ()
    """Folders and devices that guests may have as disks, media, folders and kept memory: files, block devices, links
    (``/var/lib/libvirt/images``, ``/dev/vg0``). Images of Ceph and DRBD need none."""
    firmware_paths: tuple[str, ...] = FIRMWARE
    """Folders of firmware, its templates, kernels and ROMs that guests may be started with."""
    console_paths: tuple[str, ...] = ()
    """Folders of files that serial ports and consoles of definitions may be written to."""
    socket_paths: tuple[str, ...] = ()
    """Folders of sockets that ports and interfaces of definitions may name."""
    host_devices: tuple[str, ...] = ()
    """Devices of this host that guests may have: ``0000:03:00.0``, ``usb:1d6b:0002``, ``usb:1.4``, the UUID of a
    mediated device, an interface (``eth0``), a path (``/dev/tpm0``), or ``user``, QEMU's own network, by which a guest
    reaches what listens on this host's loopback."""
    ceph_user: str = ""
    """User of Ceph, without ``client.``, for images whose definition has no ``<auth>``; empty: ``admin``, by the
    keyring of Ceph's own configuration."""
    ceph_secret: str = ""
    """UUID of the secret in which this host's libvirt has that user's key (``virsh secret-list``)."""
    call_limit: Duration = Duration(15.0)
    """How long libvirt may take to answer a question, or to end a guest."""
    create_limit: Duration = Duration(300.0)
    """How long it may take to start one."""
    threads: int = 16
    """Calls of libvirt under way at once; more are refused."""
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
        if why := unreachable(self.migration_address):
            raise ValueError(
                f"migrationAddress {self.migration_address} {why}; write this host's own, as others reach it"
            )


def unreachable(address: str) -> str:
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
