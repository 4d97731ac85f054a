"""How the daemon of a host reaches libvirt, and where guests are put."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.runtime.units import Duration


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
