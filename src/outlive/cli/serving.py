"""What ``outlive up`` and ``outlive controller`` run on their store: controllers, placement, HTTP API in one process.

Start-up order: token, certificate, port, controllers. It says when it is ready, and again when every VM was looked at.
Ctrl-C and SIGTERM let running work end first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outlive.api import TOKEN_FILE, parse_listen
from outlive.base import (
    BadInput,
    NotFound,
    OutliveError,
    SystemClock,
    SystemIds,
    Unavailable,
    Unknown,
    count_of,
    get_logger,
    read_private,
    reopen_log,
    system_random,
)
from outlive.cli.notify import TEST_PATH
from outlive.cli.output import write
from outlive.cli.settings import SETTINGS_PATH, served_settings
from outlive.cli.snapshot import synced_tables
from outlive.cli.status import reported_coverage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from outlive.api import AdmissionEndpoint, ApiSettings, KeystoneAccess, ServerTls, StateToken
    from outlive.base import Clock, Instant
    from outlive.drivers import BackupSource
    from outlive.drivers.openstack import OpenStackSession
    from outlive.failover import FailoverUpkeepSettings
    from outlive.inventory import InventoryCluster
    from outlive.network import NetworkSettings, PodNetworkSettings
    from outlive.placement import VMSource
    from outlive.resources import Secret
    from outlive.roles import NetworkDatabases, PodCluster, Ports, RoleSettings, UpRole
    from outlive.store import Store
    from outlive.store.schema import SchemaStorage

STARTED_WITHIN_S = 120.0
"""How long controllers may take to become ready before start-up is given up."""
BEGIN_S = 0.5
"""Pause between two tries to write what must be there first."""
LOOK_S = 0.02
"""Pause between two looks at whether it is ready."""
TOKEN_BYTES = 4096
"""The largest file of a scheduler's token."""
KUBECTL_CONNECTIONS = 64
"""Connections at the same time where kubectl is served by TLS beside plain HTTP."""
COVERAGE_S = 1.0
"""Pause between two looks at the coverage."""
_log = get_logger("server")


def stop_signal() -> asyncio.Future[int]:
    """Is set to the first SIGINT or SIGTERM; a second one kills."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, reopen_log)
    return stopped


async def serve(
    store: Store,
    directory: Path,
    sections: Mapping[str, Any],
    file: Path | None,
    settings: RoleSettings,
    closing: AsyncExitStack,
    stopped: asyncio.Future[int],
    *,
    backed_up: bool = True,
    admission: AdmissionEndpoint | None = None,
    prepare: Callable[[], Awaitable[None]] | None = None,
    renew_token: Callable[[StateToken], Awaitable[bool]] | None = None,
    schema: SchemaStorage | None = None,
) -> None:
    """Run everything on the store until ``stopped``. ``backed_up``: the store is in the directory, and backed up.
    ``schema``: changes the storage schema, where the store has a tree.
    ``renew_token``: has the directory's token follow the one that several servers share.

    ``prepare``: what to write first. Nothing is written before the server serves: where the store asks whether a write
    is allowed (``admission``), this process may be the only one that answers.
    """
    from outlive import __version__
    from outlive.api import (
        ApiDeps,
        AuthorityRotation,
        ExpiryGauges,
        HostJoin,
        Identity,
        StateToken,
        StoredTokens,
        Tokens,
        TokenService,
        TokenUpkeep,
        certificate_end,
        create_app,
        file_faults,
        read_tokens,
        refuse_rotation,
        serve_app,
    )
    from outlive.cli.backup import backup_source, settings_lock
    from outlive.cli.secrets import ensure_key
    from outlive.drivers import AUDIT_DIRECTORY, KEY_FILE, AuditFiles, BackupDownload, BackupFolder, ClusterKey
    from outlive.network import CHECK_PATH, TRACE_PATH
    from outlive.resources import CLUSTER, ObjectRef
    from outlive.resources.reasons import FaultCode
    from outlive.roles import UpRole
    from outlive.runtime import ActiveFault, BackupKeeper, OrderedTaskGroup, Refusals, TokenShares, audit_faults
    from outlive.store import NAMES_PATH, is_loopback

    api = sections["api"]
    host, port = parse_listen(api.listen)
    clock, ids = SystemClock(), SystemIds()
    state_token = StateToken(directory / TOKEN_FILE, clock=clock, ids=ids, shared=renew_token is not None)
    listed = read_tokens(Path(api.tokens_file)) if api.tokens_file else []
    own, shown = _make_tls(api, host, directory, clock)
    tls = own if shown else None
    stored = StoredTokens(store, clock=clock, random=system_random())
    session = await _open_session(store, directory, settings, closing)
    role = UpRole(
        store,
        settings,
        dataclasses.replace(await _open_ports(session, settings, closing), schema=schema),
        identity=f"{os.uname().nodename}-{os.getpid()}",
        clock=clock,
        random=system_random(),
        ids=ids,
    )
    admission = _open_pod_reviews(admission, role, settings)
    began = asyncio.Event()

    async def begin() -> None:
        if prepare is not None:
            await prepare()
        await role.prepare()
        if why := await ensure_key(store, clock, directory / KEY_FILE):
            say(why)

    async def run_role() -> None:
        await _retry_begin(begin)
        began.set()
        await role.run()

    def cluster_key() -> str:
        try:
            return ClusterKey.read(directory / KEY_FILE).text
        except OutliveError as error:
            raise Unavailable(f"the server has no key: {error.place} {error.message}", remedy=error.remedy) from None

    audit, refusals = AuditFiles(directory / AUDIT_DIRECTORY, settings.audit), Refusals()
    shares = TokenShares(settings.audit.token_bytes)
    closing.callback(audit.close)
    closing.callback(lambda: audit.put_all(shares.take_summaries(clock.now(), ended=True)))

    def find_audit_faults() -> list[ActiveFault]:
        now = clock.now()
        audit.put_all(shares.take_summaries(now))
        return audit_faults(
            omitted=audit.omitted,
            failure=audit.failure,
            surge=refusals.describe_surge(now),
            summarized=shares.describe(now),
            lost_before=audit.find_lost_begin(now),
        )

    role.fault_sources.append(find_audit_faults)

    def unseal(secret: Secret) -> str:
        return ClusterKey.parse(cluster_key(), KEY_FILE).unseal(secret).decode(errors="replace")

    def identify(presented: bytes) -> Identity | None:
        return state_token.identify(presented) or stored.identify(presented)

    listed_faults = file_faults(Path(api.tokens_file), listed)

    def find_server_faults(now: Instant) -> list[ActiveFault]:
        found = [*(listed_faults(now) if listed else []), *(backups.list_faults(now) if backups is not None else ())]
        if tls is not None and (end := tls.near_end()):
            subject = ObjectRef(kind="Cluster", name=CLUSTER)
            found.append(ActiveFault(FaultCode.AUTHORITY_ENDS, subject, {"end": end}))
        return found

    async def planning_settings(_query: Mapping[str, str]) -> dict[str, Any]:
        return served_settings(sections)

    def find_ends() -> Mapping[str, datetime]:
        return certificate_end(Path(api.tls_certificate)) if own is None else own.expiry_times()

    role.metrics.register_collector(ExpiryGauges(stored, find_ends).collect)

    def make_backup_source() -> BackupSource:
        return backup_source(directory, file, settings_lock(settings.backup, directory))

    folder = directory / settings.backup.directory
    backups: BackupKeeper | None = None
    if backed_up:
        kept = BackupFolder(folder, make_backup_source, clock, asyncio.to_thread)
        backups = BackupKeeper(kept, settings.backup, clock, place=str(folder))
        role.metrics.register_collector(backups.collect)

    async def newest_backup(_query: Mapping[str, str]) -> dict[str, Any]:
        if backups is None:
            raise NotFound("the store is not kept here", remedy="back etcd up: see docs/how-to/kubernetes.md")
        return backups.describe(clock.now())

    renew = partial(renew_token, state_token) if renew_token is not None else None
    upkeep = TokenUpkeep(store, stored, state_token, clock=clock, further=find_server_faults, renew=renew)
    service = TokenService(store, stored, clock=clock)
    rotate = AuthorityRotation(store, tls, clock).rotate if tls is not None else None
    deps = ApiDeps(
        store=store,
        clock=clock,
        ids=ids,
        tokens=Tokens(listed, identify, clock),
        join=HostJoin(store, stored, clock=clock, ids=ids, cluster_key=cluster_key).join,
        own_token=service.show,
        renew_token=service.renew,
        rotate_authority=rotate if backed_up else refuse_rotation,
        cluster_key=cluster_key,
        opened=unseal,
        backup=BackupDownload(make_backup_source, clock, asyncio.to_thread).open if backed_up else None,
        metrics=role.metrics,
        version=__version__,
        settings=api,
        known_cells=role.recovery.liveness.cells_of,
        scheduler_auth=settings.scheduler.auth,
        placement=role.placement,
        commitments=role.commitments.service,
        keystone=_keystone_access(session, settings),
        audit=audit,
        audit_routine=settings.audit.routine,
        refusals=refusals,
        audit_shares=shares,
        ready=role.explain_unready,
        authority=(lambda: tls.published) if tls is not None else None,
        admission=admission,
        queries={
            "/faults": role.show_faults,
            "/liveness": role.recovery.liveness.answer_liveness,
            "/failover/tolerance": role.show_tolerance,
            "/failover/protection": role.show_protection,
            "/commitments/overview": role.show_overview,
            CHECK_PATH: role.check_network,
            TRACE_PATH: role.trace_network,
            SETTINGS_PATH: planning_settings,
            NAMES_PATH: role.show_names,
            "/backups": newest_backup,
        },
        commands={
            "/commitments/consistency/repair": role.repair_commitments,
            TEST_PATH: role.notifier.test,
            **{f"{TEST_PATH}/{name}": partial(role.notifier.test, name) for name in settings.notify.targets},
        },
    )
    app = create_app(deps)
    async with stored.follow_store(), AsyncExitStack() as servers, OrderedTaskGroup() as group:
        await upkeep.renew()
        local = None
        if own is not None and tls is None:  # kubectl sends no token over plain HTTP
            few = msgspec.structs.replace(api, connections=KUBECTL_CONNECTIONS)
            loopback = host if is_loopback(host) else "127.0.0.1"
            local = (
                await servers.enter_async_context(serve_app(app, loopback, 0, settings=few, tls=own, lifespan=False)),
                own,
            )
        serve = serve_app(
            app, host, port, settings=api, state_dir=directory, version=__version__, tls=tls, beside=local
        )
        server = await servers.enter_async_context(serve)
        upkeep.renewed = server.announce
        if own is not None:
            own.changed = server.announce
        running = group.create_task(run_role(), name="role")
        beside = [group.create_task(own.run(), name="tls")] if own is not None else []
        beside.append(group.create_task(upkeep.run(), name="tokens"))
        if backups is not None:
            beside.append(group.create_task(backups.run(), name="backups"))
        reporting = group.create_task(_report(store, role, server.url, directory), name="report")
        until: list[asyncio.Future[Any]] = [stopped, running]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        for task in (reporting, *beside):
            task.cancel()
        if stopped.done():
            say("stopping")
        if not began.is_set():
            running.cancel()
        role.stop()


async def _retry_begin(begin: Callable[[], Awaitable[None]]) -> None:
    """Begin, as soon as the store takes writes; its error after ``STARTED_WITHIN_S``."""
    clock = SystemClock()
    limit_s, why = clock.monotonic() + STARTED_WITHIN_S, ""
    while True:
        try:
            await begin()
            return
        except (Unavailable, Unknown) as error:
            if clock.monotonic() > limit_s:
                raise
            if str(error) != why:
                why = str(error)
                _log.warning("server.waits_for_store", why=why)
        await clock.sleep(BEGIN_S)


def _make_tls(api: ApiSettings, host: str, directory: Path, clock: Clock) -> tuple[ServerTls | None, bool]:
    """The server's own certificate, unless it has one of its operator's, and whether all clients are shown it: those of
    a loopback address are not, but for kubectl."""
    from outlive.store import is_loopback

    if api.tls_certificate:
        return None, False
    from outlive.api import ServerTls, names_of

    tls = ServerTls(directory, names_of(host, api.names), clock)
    if is_loopback(host):
        return tls, False
    if api.insecure:
        say(f"plain HTTP on {host}: anybody on the way can read the tokens (--insecure)")
        return tls, False
    say(f"clients pin the authority of this server with --fingerprint {tls.fingerprint}")
    return tls, True


async def _open_session(
    store: Store, directory: Path, settings: RoleSettings, closing: AsyncExitStack
) -> OpenStackSession | None:
    """The session with the OpenStack that the settings name, if they name one."""
    if not settings.openstack.cloud:
        return None
    from outlive.cli.openstack import open_session

    return await open_session(store, directory, settings.openstack, closing)


def _keystone_access(session: OpenStackSession | None, settings: RoleSettings) -> KeystoneAccess | None:
    """Who may use LIQUID with a token of Keystone."""
    if session is None:
        return None
    from outlive.api import KeystoneAccess
    from outlive.drivers.openstack import KeystoneTokens

    return KeystoneAccess(KeystoneTokens(session, SystemClock()), settings.commitments.liquid_policy)


async def _open_ports(session: OpenStackSession | None, settings: RoleSettings, closing: AsyncExitStack) -> Ports:
    """The drivers that the settings ask for; ``closing`` lets go of what they hold."""
    from outlive.drivers import ChildComputer, notifier_ports
    from outlive.roles import Limes, Ports

    computer = ChildComputer()
    closing.push_async_callback(computer.close)
    source: VMSource | None = None
    placement = inventory = limes = moves = domains = None
    if session is not None:
        from outlive.drivers.openstack import (
            KeystoneProjects,
            LimesClient,
            NovaClient,
            NovaInventory,
            NovaMoves,
            NovaVms,
        )

        nova = NovaClient(session, settings.openstack, SystemClock())
        moves = NovaMoves(nova)
        if settings.openstack.inventory:
            inventory = NovaInventory(nova, settings.openstack, SystemClock())
        if settings.upkeep.vm_source == "nova":
            source = NovaVms(nova, settings.openstack, SystemClock())
        domains = KeystoneProjects(session)
        if settings.openstack.commitments:
            asked = LimesClient(session, settings.openstack, clock=SystemClock(), random=system_random())
            limes = Limes(domains, asked)
    if settings.upkeep.vm_source == "database":
        source = await closing.enter_async_context(synced_tables(settings))
    clusters = _open_clusters(settings, closing)
    if settings.upkeep.placement == "http":
        from outlive.drivers import SchedulerClient

        placement = SchedulerClient(settings.failover.scheduler_url, token=_scheduler_token(settings.upkeep))
        closing.push_async_callback(placement.close)
    return Ports(
        network=await _open_network(settings.network, closing),
        pods=_open_pod_cluster(settings.network.pods, closing),
        notify=notifier_ports(settings.notify),
        computer=computer,
        source=source,
        placement=placement,
        inventory=inventory,
        clusters=clusters,
        limes=limes,
        domains=domains,
        nova=moves,
        offload=asyncio.to_thread,
    )


def _open_pod_cluster(settings: PodNetworkSettings, closing: AsyncExitStack) -> PodCluster | None:
    """The cluster of whose pods the networks are followed."""
    if not settings.follow:
        return None
    from outlive.drivers.kubernetes import open_pod_cluster

    return open_pod_cluster(
        settings,
        closing,
        clock=SystemClock(),
        random=system_random(),
        ids=SystemIds(),
        instance=os.uname().nodename,
    )


def _open_pod_reviews(
    admission: AdmissionEndpoint | None, role: UpRole, settings: RoleSettings
) -> AdmissionEndpoint | None:
    """The webhook, which also reviews network annotations where pods are followed."""
    if admission is None or role.pods is None:
        return admission
    from outlive.api import PodReviews
    from outlive.drivers.kubernetes import IdentitiesFile

    identities = IdentitiesFile(settings.network.pods.identities, SystemClock())
    reviews = PodReviews(role.pods.cache, identities, role.decisions)
    return admission._replace(review_pods=reviews.review)


async def _open_network(settings: NetworkSettings, closing: AsyncExitStack) -> NetworkDatabases | None:
    """OVN's databases, where they are named; the connections are made in the background."""
    if not settings.northbound:
        return None
    try:
        from outlive.drivers.ovn import OvnNorthbound, OvnSouthbound, OvnTracer, set_certificates
    except ImportError:
        remedy = "pip install 'outlive[ovn]'"
        raise BadInput("OVN's library is not installed", place="network.northbound", remedy=remedy) from None
    from outlive.roles import NetworkDatabases

    options: list[str] = []
    if settings.key_file:
        options = [f"--private-key={settings.key_file}", f"--certificate={settings.certificate_file}"]
        options.append(f"--ca-cert={settings.ca_file}")
        set_certificates(settings.key_file, settings.certificate_file, settings.ca_file)
    probe_ms = int(1000 * settings.probe)
    southbound = OvnSouthbound(settings.southbound, probe_ms=probe_ms)
    northbound = OvnNorthbound(settings.northbound, southbound, probe_ms=probe_ms, key_prefix=settings.key_prefix)
    for one in (southbound, northbound):
        closing.push_async_callback(one.aclose)
        await one.start()
    return NetworkDatabases(northbound, southbound, OvnTracer(settings.southbound, *options))


def _open_clusters(settings: RoleSettings, closing: AsyncExitStack) -> tuple[InventoryCluster, ...]:
    """The clusters whose ``Hypervisor`` objects are hosts; ``BadInput`` for a kubeconfig that is none."""
    if not settings.inventory.source:
        return ()
    from outlive.drivers.kubernetes import KubernetesVerbs
    from outlive.inventory import InventoryCluster
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    found = []
    for name, one in settings.inventory.clusters.items():
        access = cluster_access(one.kubeconfig, one.context)
        store = KubernetesStore(access, clock=SystemClock(), random=system_random())
        closing.push_async_callback(store.close)
        found.append(InventoryCluster(name, frozenset(one.zones), store, KubernetesVerbs(store)))
    return tuple(found)


def _scheduler_token(upkeep: FailoverUpkeepSettings) -> str:
    """The token for the scheduler, from the settings or from the file that they name; ``BadInput`` if it is none."""
    token, place = upkeep.scheduler_token, "failoverUpkeep.schedulerToken"
    if upkeep.scheduler_token_file:
        place = upkeep.scheduler_token_file
        token = read_private(Path(place), limit=TOKEN_BYTES).decode(errors="replace")
        if not token.strip():
            raise BadInput("holds no token", place=place, remedy="write the scheduler's token into it")
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise BadInput("is no token", place=place, remedy="a token is one word of ASCII characters")
    return token


async def _report(store: Store, role: UpRole, url: str, directory: Path) -> None:
    """Say when it is ready, and the coverage once every VM has been looked at; the address is what is said last."""
    from outlive.base import freeze_objects
    from outlive.resources import FAILOVER, Reservation
    from outlive.resources.reasons import CoverageReason
    from outlive.store import list_all

    for _ in range(int(STARTED_WITHIN_S / LOOK_S)):
        if not role.explain_unready():
            break
        await asyncio.sleep(LOOK_S)
    else:
        raise Unavailable(f"not ready after {STARTED_WITHIN_S:g} s: {role.explain_unready()}", remedy="see the log")
    freeze_objects()
    hosts, vms = len(role.informers.hypervisors), len(role.informers.vms)
    say(f"ready with {count_of(hosts, 'host')} and {count_of(vms, 'VM')} (token in {directory / TOKEN_FILE})")
    if not vms:
        say("nothing to protect yet: see outlive import --help")
        say(f"ready on {url}")
        return
    seen = await _read_coverage(store)
    say(f"{_coverage_text(seen)}; ready on {url}")
    if seen["reported"] >= vms and CoverageReason.WAITING not in seen["reasons"]:
        return
    while seen["reported"] < vms or CoverageReason.WAITING in seen["reasons"]:
        await asyncio.sleep(COVERAGE_S)
        seen = await _read_coverage(store)
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == FAILOVER]
    say(f"{_coverage_text(seen)} by {count_of(len(slots), 'slot')}; ready on {url}")


async def _read_coverage(store: Store) -> dict[str, Any]:
    from outlive.resources import Coverage
    from outlive.store import list_all

    return reported_coverage([one async for one in list_all(store, Coverage)])


def _coverage_text(seen: dict[str, Any]) -> str:
    if not seen["reported"]:
        return "coverage is being worked out"
    return f"{seen['covered']} of {seen['required']} VMs that need slots are covered"


def say(text: str) -> None:
    """Print to the user who started the process; logs go to standard error."""
    write(f"outlive: {text}\n")
