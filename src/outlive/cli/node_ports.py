"""The real drivers of one host, as its configuration asks for them: one function for each port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from outlive.base.errors import BadInput, OutliveError
from outlive.base.logging import get_logger
from outlive.drivers.absent import NoHypervisor
from outlive.drivers.bmc import PowerControllers
from outlive.drivers.credentials import CredentialFiles, known_authorities
from outlive.drivers.files import read_input
from outlive.drivers.libvirt.consoles import ConsoleFiles
from outlive.drivers.libvirt.settings import unreachable
from outlive.drivers.secrets import KeyCopy, Secrets
from outlive.drivers.storage import CephStatistics, cuts, disks
from outlive.node.credentials import Credentials
from outlive.roles.node import NodePorts
from outlive.store.tls import AUTHORITY_BYTES, KEY_PATH, SCREEN_PATH, context_trusting, parse_fingerprint, trusting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from outlive.base.clock import Clock
    from outlive.cli.node_settings import HostConfig, ServerSettings
    from outlive.drivers.libvirt.hypervisor import LibvirtHypervisor
    from outlive.drivers.machine import LinuxMachine
    from outlive.node.guard_client import GuardClient
    from outlive.node.ports import CutPort, PowerPort, StoragePort
    from outlive.store import Store
    from outlive.store.http import HttpStore

_log = get_logger("node")


def hypervisor_port(
    config: HostConfig, screen_password: Callable[[str], Awaitable[str]] | None = None
) -> LibvirtHypervisor | NoHypervisor:
    """The host's libvirt, or nothing."""
    if not config.libvirt.uri:
        return NoHypervisor()
    try:
        from outlive.drivers.libvirt import hypervisor, migration
    except ImportError:
        why = f"{config.libvirt.uri!r} cannot be reached: Python's binding of libvirt is not installed"
        remedy = "pip install 'outlive[libvirt]', which needs the Debian packages libvirt-dev and gcc"
        raise BadInput(why, place=f"{config.file}: libvirt.uri", remedy=remedy) from None
    settings = config.libvirt
    if not settings.migration_address:
        cluster = config.host.addresses.get("cluster", "")
        if why := unreachable(cluster):
            place = f"{config.file}: host.addresses.cluster"
            raise BadInput(f"{cluster} {why}", place=place, remedy="write this host's own, as others reach it")
        settings = msgspec.structs.replace(settings, migration_address=cluster)
        if not settings.migration_address:
            _log.warning("libvirt.no_address_for_moves", remedy=migration.NO_ADDRESS)
    return hypervisor.LibvirtHypervisor(settings, screen_password, config.storage.monitors())


def storage_port(config: HostConfig) -> StoragePort:
    """Locks on the disks of virtual machines."""
    return disks(config.storage, config.host.addresses.get("storage", ""), Path(config.host.state_dir))


def cut_port(config: HostConfig, store: Store, clock: Clock) -> CutPort:
    """Who can shut a host out of disks."""
    address, state = config.host.addresses.get("storage", ""), Path(config.host.state_dir)
    return cuts(config.storage, store, clock, host=config.name, address=address, state=state)


def power_port(config: HostConfig, store: Store, clock: Clock) -> PowerPort:
    """Power controllers of other hosts, for coordinators."""
    return PowerControllers(Secrets(store, Path(config.server.key_file)).credential)


def cluster_keys(config: HostConfig, store: HttpStore) -> KeyCopy:
    """This host's copy of the cluster's key, for coordinators."""

    async def fetch() -> str:
        answer = await store.question(KEY_PATH)
        key = answer.get("key") if isinstance(answer, dict) else None
        return key if isinstance(key, str) else ""

    return KeyCopy(fetch, Path(config.server.key_file))


def screen_passwords(store: HttpStore) -> Callable[[str], Awaitable[str]]:
    """The password of the screens of a VM of this host, from the server."""

    async def fetch(vm: str) -> str:
        answer = await store.question(SCREEN_PATH.format(name=quote(vm, safe="")))
        found = answer.get("password") if isinstance(answer, dict) else None
        return found if isinstance(found, str) else ""

    return fetch


def credential_files(server: ServerSettings) -> CredentialFiles:
    """This host's token, and the authorities that it believes where it has pinned one."""
    own = server.url.startswith("https://") and bool(server.fingerprint)
    authority = Path(server.ca_file) if own and server.ca_file else None
    pinned = parse_fingerprint(server.fingerprint) if authority is not None else ""
    return CredentialFiles(Path(server.token_file), authority, pinned)


def node_ports(
    config: HostConfig, machine: LinuxMachine, guard: GuardClient, store: HttpStore, clock: Clock
) -> NodePorts:
    """All of them."""
    hypervisor = hypervisor_port(config, screen_passwords(store))
    return NodePorts(
        hypervisor=hypervisor,
        machine=machine,
        guard=guard,
        storage=storage_port(config),
        power=power_port(config, store, clock),
        cut=cut_port(config, store, clock),
        statistics=hypervisor.statistics,
        keys=cluster_keys(config, store),
        credentials=Credentials(credential_files(config.server), store),
        storage_statistics=CephStatistics(config.storage),
        consoles=ConsoleFiles(config.libvirt.console_folder) if config.libvirt.uri else None,
    )


def server_tls(server: ServerSettings) -> ssl.SSLContext | None:
    """How the server is recognised; ``None``: by authorities that the system knows, or over plain HTTP."""
    if not server.url.startswith("https://"):
        return None
    if not server.ca_file:
        return None
    try:
        if server.fingerprint:
            return context_trusting(known_authorities(Path(server.ca_file), parse_fingerprint(server.fingerprint)))
        return trusting(read_input(Path(server.ca_file), limit=AUTHORITY_BYTES).decode())
    except (UnicodeDecodeError, OutliveError) as error:
        why = error.message if isinstance(error, OutliveError) else "it is no text"
        raise BadInput(why, place=server.ca_file, remedy="join again: outlive node join") from None
