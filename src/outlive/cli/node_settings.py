"""The configuration of a host, ``/etc/outlive/node.yaml``: which sections there are, and what each file says.

Each section belongs to the package that reads it. Variables of the environment and flags count more, as everywhere
(docs/reference/configuration.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from outlive.api import HostMetricsSettings
from outlive.base import BadInput, Clock, NotFound, Refused, as_datetime
from outlive.drivers import HostSection, read_host_token
from outlive.drivers.libvirt import LibvirtSettings
from outlive.drivers.ovn import HostNetworkSettings
from outlive.drivers.storage import StorageSettings
from outlive.guard import SOCKET
from outlive.node.links import LinkSettings
from outlive.node.services import ServicesSettings
from outlive.node.vm import NodeSettings
from outlive.roles import LogSettings

YEAR_2020_S: Final = 1_577_836_800
"""No clock of a host that works is before it."""
NODE_FILE: Final = Path("/etc/outlive/node.yaml")
TOKEN_FILE: Final = "/etc/outlive/node.token"  # noqa: S105 - the name of a file
KEY_FILE: Final = "/etc/outlive/cluster-key"
NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
"""Of names of objects."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``server`` of a host's configuration: where its cluster's ``outlive up`` or controllers are; ``outlive
    node join`` writes it. Or the API server that the host writes to itself."""

    store: Literal["server", "kubernetes", "zookeeper"] = "server"
    """``kubernetes``: a Kubernetes API server instead of a server of Outlive (docs/how-to/kubernetes.md#direct);
    ``zookeeper``: an ensemble, for coordinators only (docs/how-to/zookeeper.md#hosts)."""
    zookeeper: str = ""
    """File with the ensemble's address; empty: ``OUTLIVE_ZOOKEEPER``, or /etc/outlive/zookeeper.yaml."""
    kubeconfig: str = ""
    """This host's credentials for that API server; empty: ``KUBECONFIG``."""
    context: str = ""
    """Context of the kubeconfig; empty: its current one."""

    url: str = ""
    """Address of the server, such as ``https://controller.example:8443``; of several equal ones all, with commas."""
    token_file: str = TOKEN_FILE
    """File with this host's token; readable by root only."""
    ca_file: str = ""
    """Trusted authorities (PEM); empty: those of the system."""
    fingerprint: str = ""
    """SHA-256 of the server's authority, pinned when the host joined."""
    key_file: str = KEY_FILE
    """Key of the cluster's secrets, such as passwords of BMCs; only on coordinators."""
    insecure: bool = False
    """Allow plain HTTP beyond this machine."""


class PrimarySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``primary`` of a coordinator's configuration: what is to run only on the primary."""

    start: tuple[str, ...] = ()
    """Program and arguments when this host becomes the primary, such as ``[systemctl, start, outlive-up]``; it ends
    within 8 s. ``OUTLIVE_TERM`` is the term."""
    stop: tuple[str, ...] = ()
    """Program and arguments when it stops being the primary; also run if the first one failed."""


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``guard`` of a host's configuration: where its guard is."""

    socket: str = SOCKET
    """The socket that ``outlive guard`` listens on."""


SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "server": ServerSettings,
    "host": HostSection,
    "libvirt": LibvirtSettings,
    "guard": GuardSettings,
    "primary": PrimarySettings,
    "storage": StorageSettings,
    "network": HostNetworkSettings,
    "links": LinkSettings,
    "services": ServicesSettings,
    "node": NodeSettings,
    "log": LogSettings,
    "metrics": HostMetricsSettings,
}
"""Sections of ``node.yaml``."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """A host's configuration, filled and consistent."""

    file: Path
    host: HostSection
    server: ServerSettings
    libvirt: LibvirtSettings
    guard: GuardSettings
    primary: PrimarySettings
    storage: StorageSettings
    network: HostNetworkSettings
    links: LinkSettings
    services: ServicesSettings
    node: NodeSettings
    log: LogSettings
    metrics: HostMetricsSettings

    @property
    def name(self) -> str:
        """Of this host's ``Hypervisor``."""
        return host_name(self.host)

    @property
    def direct(self) -> bool:
        """Whether this host writes to the store itself, and to no server of Outlive."""
        return self.server.store != "server"

    @property
    def place(self) -> str:
        """Where its cluster is, as it may be logged."""
        from outlive.store import shown_address

        if not self.direct:
            return shown_address(self.server.url)
        return "a Kubernetes API server" if self.server.store == "kubernetes" else "an ensemble of ZooKeeper"

    def read_token(self) -> str:
        """This host's token; ``BadInput`` where the file holds none."""
        return read_host_token(Path(self.server.token_file))


def host_name(host: HostSection) -> str:
    """As it is called there, or the machine's short host name."""
    return host.name or os.uname().nodename.partition(".")[0].lower()


def own_name() -> str:
    """Of this machine: as its configuration calls it where there is one, else its short host name."""
    try:
        return load_node(node_file(None)).name
    except NotFound:
        return host_name(HostSection())


def node_file(given: Path | None) -> Path:
    """The configuration: ``--config``, else ``OUTLIVE_CONFIG``, else the usual place."""
    named = os.environ.get("OUTLIVE_CONFIG", "")
    return given if given is not None else Path(named) if named else NODE_FILE


def load_node(file: Path, flags: Mapping[str, Any] | None = None) -> HostConfig:
    """All of it; ``BadInput`` and ``NotFound`` say what is wrong."""
    from outlive.runtime import load_settings
    from outlive.store import split_addresses

    sections = load_settings(SECTIONS, file=file, environ=os.environ, flags=flags or {})
    config = HostConfig(file=file, **sections)
    if config.direct:
        if config.server.url:
            what, remedy = f"is named beside {config.place}", f"leave it, or server.store: {config.server.store}, out"
            raise BadInput(what, place=f"{file}: server.url", remedy=remedy)
        if config.server.store == "zookeeper" and config.host.mode != "coordinator":
            what = f"{config.name} is no coordinator, and an ensemble cannot tell which fields a host may write"
            remedy = "use the API of the controllers: server.url, with commas between them; outlive node join"
            raise BadInput(what, place=f"{file}: server.store", remedy=remedy)
    elif not config.server.url:
        raise BadInput("no server is named", place=f"{file}: server.url", remedy="join a cluster: outlive node join")
    else:
        split_addresses(config.server.url, insecure=config.server.insecure)
    if not config.name or not set(config.name) <= NAME_CHARACTERS:
        raise BadInput(
            f"{config.name[:80]!r} cannot be the name of a host",
            place=f"{file}: host.name",
            remedy="write small letters, digits, '-' and '.'",
        )
    return config


def check_clock(clock: Clock) -> None:
    """``Refused`` where the clock is not set: what the daemon writes would be taken for very old."""
    now = clock.now()
    if now < YEAR_2020_S:
        raise Refused(
            f"the clock says {as_datetime(now):%Y-%m-%d}, which is long past",
            remedy="set it, as by chronyc makestep, and start the daemon again",
        )
