"""The real drivers of one host, as its configuration asks for them: one function for each port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from outlive.base import BadInput, OutliveError, Unavailable, get_logger, system_random
from outlive.drivers import (
    CredentialFiles,
    KeyCopy,
    NoHypervisor,
    Secrets,
    read_authorities,
    read_input,
    read_other_token,
)
from outlive.drivers.bmc import PowerControllers
from outlive.drivers.libvirt import ConsoleFiles, unreachable_reason
from outlive.drivers.storage import CephStatistics, make_cuts, make_disks
from outlive.node import Credentials
from outlive.roles import HostFunctions, HostLinks, HostServices, NodePorts
from outlive.store import (
    AUTHORITY_BYTES,
    KEY_PATH,
    SCREEN_PATH,
    make_client_context,
    make_pinned_context,
    parse_fingerprint,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from outlive.base import Clock
    from outlive.cli.node_settings import HostConfig, ServerSettings
    from outlive.drivers import LinuxMachine
    from outlive.drivers.libvirt import LibvirtHypervisor
    from outlive.node import GuardClient
    from outlive.node.ports import CutPort, NetworkPort
    from outlive.store import HttpStore, Store

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
        if why := unreachable_reason(cluster):
            place = f"{config.file}: host.addresses.cluster"
            raise BadInput(f"{cluster} {why}", place=place, remedy="write this host's own, as others reach it")
        settings = msgspec.structs.replace(settings, migration_address=cluster)
        if not settings.migration_address:
            _log.warning("libvirt.no_address_for_moves", remedy=migration.NO_ADDRESS)
    return hypervisor.LibvirtHypervisor(settings, screen_password, config.storage.monitor_names())


def port_cuts(config: HostConfig, store: Store) -> CutPort:
    """Who can shut a host out of networks: coordinators that reach OVN's databases."""
    from outlive.drivers.ovn import ArrivedPorts

    network = config.network
    if network.driver != "ovn" or not network.northbound:
        return ArrivedPorts()
    from outlive.drivers.ovn import OvnCuts, OvnNorthbound, OvnSouthbound, set_certificates
    from outlive.drivers.ovn.chassis_table import chassis_table

    if network.key_file:
        set_certificates(network.key_file, network.certificate_file, network.ca_file)
    southbound = OvnSouthbound(network.southbound)
    northbound = OvnNorthbound(network.northbound, southbound, key_prefix=network.key_prefix)
    return OvnCuts(northbound, southbound, chassis_table(store, southbound))


def network_port(config: HostConfig, store: Store, clock: Clock) -> NetworkPort | None:
    """Networks of VMs, where this host is a chassis of OVN."""
    if config.network.driver != "ovn":
        return None
    try:
        from outlive.drivers.ovn import LocalSwitch, OvnNetwork, PacketAnnouncer
    except ImportError:
        remedy = "pip install 'outlive[ovn]'"
        raise BadInput("OVN's library is not installed", place=f"{config.file}: network", remedy=remedy) from None
    return OvnNetwork(
        store,
        LocalSwitch(config.network.switch),
        config.name,
        float(config.network.prepare_timeout),
        clock=clock,
        announcer=PacketAnnouncer(clock),
    )


def host_functions(config: HostConfig, hypervisor: LibvirtHypervisor | NoHypervisor) -> HostFunctions | None:
    """Virtual functions of the host's network cards, where its configuration names some; guests may have them."""
    if not config.links.sriov:
        return None
    try:
        from outlive.drivers.links import CardFunctions
    except ImportError:
        remedy = "pip install 'outlive[links]'"
        raise BadInput("pyroute2 is not installed", place=f"{config.file}: links.sriov", remedy=remedy) from None
    cards = CardFunctions()
    hypervisor.functions = cards.list_devices
    return HostFunctions(cards, config.links.sriov)


def host_links(config: HostConfig, clock: Clock) -> HostLinks | None:
    """The host's own network, where the daemon is to make it."""
    if not config.links.is_on:
        return None
    try:
        import pyroute2  # noqa: F401 - whether it is installed
    except ImportError:
        remedy = "pip install 'outlive[links]'"
        raise BadInput("pyroute2 is not installed", place=f"{config.file}: links", remedy=remedy) from None
    from outlive.drivers.links import KernelLinks, LinkNotesFile

    return HostLinks(KernelLinks(clock), LinkNotesFile(Path(config.host.state_dir)), config.links)


def host_services(config: HostConfig, clock: Clock) -> HostServices | None:
    """What this host serves as the primary, where it makes networks."""
    if not config.links.is_on:
        return None
    from outlive.drivers.services import RoleGuard, service_ports

    settings = config.services
    public = Path(settings.public_dir)
    guard = RoleGuard(public / "addresses")
    ports = service_ports(
        Path(config.host.state_dir) / "services",
        public,
        clock,
        watch=guard.watch,
        dnsmasq=settings.dnsmasq,
        pdns=settings.pdns,
    )
    return HostServices(ports, guard, settings)


def cluster_keys(config: HostConfig, store: HttpStore | None) -> KeyCopy:
    """This host's copy of the cluster's key, for coordinators. ``store``: a server, which alone hands it over."""

    async def fetch() -> str:
        if store is None:
            remedy = f"copy cluster-key of the shared keys to {config.server.key_file}"
            raise Unavailable(f"{config.place} hands over no key of the cluster", remedy=remedy)
        answer = await store.question(KEY_PATH)
        key = answer.get("key") if isinstance(answer, dict) else None
        return key if isinstance(key, str) else ""

    return KeyCopy(fetch, Path(config.server.key_file))


def screen_passwords(store: HttpStore | None) -> Callable[[str], Awaitable[str]]:
    """The password of the screens of a VM of this host, from the server."""

    async def fetch(vm: str) -> str:
        if store is None:
            remedy = "have this host use the controllers' API: outlive node join"
            raise Unavailable("the store itself hands over no password of a screen", remedy=remedy)
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


def node_store(config: HostConfig, clock: Clock) -> Store:
    """The store as this host's own credentials open it."""
    server = config.server
    if server.store == "zookeeper":
        from outlive.base import SystemIds
        from outlive.store.zookeeper import ZooKeeperClient, ZooKeeperStore, read_access

        client = ZooKeeperClient(read_access(server.zookeeper))
        return ZooKeeperStore(client, clock=clock, ids=SystemIds(), random=system_random())
    if config.direct:
        from outlive.store.kubernetes import KubernetesStore, cluster_access

        return KubernetesStore(cluster_access(server.kubeconfig, server.context), clock=clock, random=system_random())
    from outlive.store import HttpStore

    return HttpStore(
        server.url,
        config.read_token(),
        clock=clock,
        random=system_random(),
        tls=server_tls(server),
        insecure=server.insecure,
        former=read_other_token(Path(server.token_file)),
    )


def node_ports(config: HostConfig, machine: LinuxMachine, guard: GuardClient, store: Store, clock: Clock) -> NodePorts:
    """All of them."""
    from outlive.store import HttpStore

    server = store if isinstance(store, HttpStore) else None
    hypervisor = hypervisor_port(config, screen_passwords(server))
    address, state = config.host.addresses.get("storage", ""), Path(config.host.state_dir)
    cuts = make_cuts(config.storage, store, clock, host=config.name, address=address, state=state)
    cuts.add("port", port_cuts(config, store))
    return NodePorts(
        hypervisor=hypervisor,
        machine=machine,
        guard=guard,
        storage=make_disks(config.storage, address, state),
        power=PowerControllers(Secrets(store, Path(config.server.key_file)).read_credential),
        cut=cuts,
        statistics=hypervisor.read_statistics,
        keys=cluster_keys(config, server),
        credentials=Credentials(credential_files(config.server), server) if server is not None else None,
        storage_statistics=CephStatistics(config.storage),
        network=network_port(config, store, clock),
        functions=host_functions(config, hypervisor),
        links=host_links(config, clock),
        services=host_services(config, clock),
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
            return make_pinned_context(read_authorities(Path(server.ca_file), parse_fingerprint(server.fingerprint)))
        return make_client_context(read_input(Path(server.ca_file), limit=AUTHORITY_BYTES).decode())
    except (UnicodeDecodeError, OutliveError) as error:
        why = error.message if isinstance(error, OutliveError) else "it is no text"
        raise BadInput(why, place=server.ca_file, remedy="join again: outlive node join") from None
