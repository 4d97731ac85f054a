"""``outlive controller``: what ``outlive up`` runs, on a store that several machines reach, instead of one of its own.

Several equal processes run it: each serves the HTTP API, one of them is elected and decides. A process keeps nothing
that another one needs: objects and shared keys are in a Kubernetes API server (docs/how-to/kubernetes.md) or in
ZooKeeper (docs/how-to/zookeeper.md).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.api import AUTHORITY_FILE, TOKEN_FILE, parse_listen
from outlive.base import (
    ExitCode,
    NotFound,
    Refused,
    SystemClock,
    SystemIds,
    Usage,
    as_datetime,
    get_logger,
    join_parts,
    system_random,
)
from outlive.cli.access import StoreKind, default_state_dir
from outlive.cli.arguments import Yes
from outlive.cli.output import write, yaml_text
from outlive.cli.questions import ask
from outlive.cli.serving import say, serve, stop_signal
from outlive.cli.settings import config_file, load, store_settings, with_remembered_slots
from outlive.runtime import OrderedTaskGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlive.api import ApiSettings, StateToken
    from outlive.drivers import SharedKeys
    from outlive.store.kubernetes import KubernetesStore
    from outlive.store.zookeeper import ZooKeeperStore

NAMESPACE = "outlive"
_log = get_logger("controller")
INCARNATION_S = 15.0
"""How often a controller looks whether somebody has said that the store was restored."""
KINDS_S = 60.0
"""How often it looks whether the kinds are still those that it needs."""
NAMED = 6
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="The API server; in a pod its service account.")
]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig.")]
Namespace = Annotated[
    str,
    typer.Option("--namespace", metavar="NAME", envvar="OUTLIVE_NAMESPACE", help="Where the Secret with the keys is."),
]
ZooKeeperFile = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        metavar="FILE",
        envvar="OUTLIVE_ZOOKEEPER",
        help="For --store zookeeper: its address; else /etc/outlive/zookeeper.yaml.",
    ),
]
SharedStore = Annotated[StoreKind, typer.Option("--store", help="kubernetes, or zookeeper.", case_sensitive=False)]


async def controller(
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve.")] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir", metavar="DIR", envvar="OUTLIVE_STATE_DIR", help="Where to keep keys and the audit log."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of outlive.yaml.")
    ] = None,
    store: SharedStore = StoreKind.KUBERNETES,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
    zookeeper: ZooKeeperFile = "",
) -> ExitCode | None:
    """Run the controllers on a Kubernetes API server or ZooKeeper, as one of several. Prints its address when ready."""
    from outlive.base import configure_logging
    from outlive.roles import role_settings

    if listen is not None:
        parse_listen(listen, place="--listen")
    directory = state_dir if state_dir is not None else default_state_dir()
    file = config_file(config, directory)
    sections = load(file, {"api.listen": listen})
    settings = role_settings(sections)
    configure_logging(level=settings.log.level, form=settings.log.form, file=settings.log.file)
    if store is StoreKind.ZOOKEEPER:
        ensemble = zookeeper_store(zookeeper)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return await _run_on_zookeeper(ensemble, directory, sections, file)
        finally:
            await ensemble.close()
    cluster = kubernetes_store(store, kubeconfig, context)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return await _run(cluster, directory, sections, file, namespace)
    finally:
        await cluster.close()


def kubernetes_store(store: StoreKind, kubeconfig: str, context: str) -> KubernetesStore:
    """The store on an API server; ``Usage`` for a store that one process alone has."""
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    if store is not StoreKind.KUBERNETES:
        what = f"{store} is the store of outlive up, which one process has"
        raise Usage(what, place="--store", remedy="write kubernetes or zookeeper")
    return KubernetesStore(cluster_access(kubeconfig, context), clock=SystemClock(), random=system_random())


def zookeeper_store(file: str) -> ZooKeeperStore:
    """The store on the ensemble of an access file."""
    from outlive.store.zookeeper import ZooKeeperClient, ZooKeeperStore, read_access

    client = ZooKeeperClient(read_access(file))
    return ZooKeeperStore(client, clock=SystemClock(), ids=SystemIds(), random=system_random())


def _with_service_names(api: ApiSettings, namespace: str) -> ApiSettings:
    """The settings with the names of the Service of the manifests, by which the cluster reaches the controllers."""
    from outlive.api import SERVICE

    names = (SERVICE, f"{SERVICE}.{namespace}", f"{SERVICE}.{namespace}.svc")
    return msgspec.structs.replace(api, names=tuple(dict.fromkeys((*api.names, *names))))


async def _run(
    store: KubernetesStore, directory: Path, sections: Mapping[str, Any], file: Path | None, namespace: str
) -> ExitCode | None:
    from outlive.api import AdmissionEndpoint, AdmissionReviews
    from outlive.base import limit_collections
    from outlive.drivers.kubernetes import SecretKeys, admission_key
    from outlive.roles import role_settings
    from outlive.store.kubernetes import check_kinds_served

    limit_collections()
    stopped = stop_signal()
    if newer := await check_kinds_served(store):
        say(
            "the kinds on the API server are newer than this: upgrade the controllers "
            f"({join_parts(newer, most=NAMED)})"
        )
    keys = SecretKeys(store, namespace)
    await _take_keys(store, keys, directory)
    sections = await with_remembered_slots(store, sections)
    key = await admission_key(store, namespace, SystemIds().new_token())
    reviews = AdmissionReviews(store, SystemClock(), namespace)
    async with AsyncExitStack() as closing, OrderedTaskGroup() as group:
        following = group.create_task(_follow_incarnation(store, keys), name="incarnation")
        checking = group.create_task(_follow_kinds(store), name="kinds")
        await serve(
            store,
            directory,
            {**sections, "api": _with_service_names(sections["api"], namespace)},
            file,
            role_settings(sections),
            closing,
            stopped,
            backed_up=False,
            admission=AdmissionEndpoint(reviews.review, key),
            prepare=lambda: store_settings(store, SystemClock(), sections),
            renew_token=partial(_renew_token, keys),
        )
        following.cancel()
        checking.cancel()
    return ExitCode.INTERRUPTED if stopped.result() == signal.SIGINT else None


async def _run_on_zookeeper(
    store: ZooKeeperStore, directory: Path, sections: Mapping[str, Any], file: Path | None
) -> ExitCode | None:
    from outlive.base import limit_collections
    from outlive.cli.node import replace_process
    from outlive.drivers.zookeeper import ZnodeKeys
    from outlive.roles import role_settings
    from outlive.store.zookeeper import TreeMover

    limit_collections()
    stopped = stop_signal()
    mover = TreeMover(store.client, by=f"{os.uname().nodename}-{os.getpid()}", clock=SystemClock())
    await mover.run()  # what another one has left: nobody may write before that is finished
    await store.get_layout()
    keys = ZnodeKeys(store, SystemClock())
    await _take_keys(store, keys, directory)
    sections = await with_remembered_slots(store, sections)
    async with AsyncExitStack() as closing, OrderedTaskGroup() as group:
        following = group.create_task(_follow_incarnation(store, keys), name="incarnation")
        restarting = group.create_task(_end_when_moved(store, stopped), name="schema")
        await serve(
            store,
            directory,
            sections,
            file,
            role_settings(sections),
            closing,
            stopped,
            backed_up=False,
            prepare=lambda: store_settings(store, SystemClock(), sections),
            renew_token=partial(_renew_token, keys),
            schema=mover,
        )
        following.cancel()
        restarting.cancel()
    if stopped.result() == signal.SIGUSR2:
        await store.close()
        replace_process()
    return ExitCode.INTERRUPTED if stopped.result() == signal.SIGINT else None


async def _end_when_moved(store: ZooKeeperStore, stopped: asyncio.Future[int]) -> None:
    """Have this process end, and begin anew, once another storage schema counts."""
    await store.schema.moved.wait()
    say(f"the storage schema is {store.schema.version} now: this process begins anew")
    if not stopped.done():
        stopped.set_result(signal.SIGUSR2)


async def _take_keys(store: KubernetesStore | ZooKeeperStore, keys: SharedKeys, directory: Path) -> None:
    """Have the cluster's keys in the directory; the first server makes them.

    ``Refused`` where the cluster has had keys, and they are gone: others would open no secret, and no host would
    believe them; or somebody has deleted them so that no controller begins here again.
    """
    from outlive.api import AUTHORITY_KEY_FILE, ServerTls, StateToken
    from outlive.drivers import KEY_FILE, ClusterKey
    from outlive.resources import CLUSTER, Cluster
    from outlive.store import read

    files = (AUTHORITY_FILE, AUTHORITY_KEY_FILE, KEY_FILE, TOKEN_FILE)
    if await keys.read(directory, files):
        store.become(await keys.read_incarnation())
        return
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is not None and cluster.status.sealing_key:
        raise Refused(f"this cluster has had keys, and {keys.place} is gone", remedy=keys.lost_remedy)
    say(f"the keys of this cluster are made, and kept in {keys.place}")
    clock = SystemClock()
    StateToken(directory / TOKEN_FILE, clock=clock, ids=SystemIds())
    ServerTls(directory, (), clock)
    ClusterKey.ensure(directory / KEY_FILE)
    await keys.share(directory, files, SystemIds().new_uuid())
    store.become(await keys.read_incarnation())


async def _renew_token(keys: SharedKeys, token: StateToken) -> bool:
    """Have this server's token be the shared one, and that one renewed when it is due; whether it is another one now.

    Errors of the store. Of two servers that renew it together the second one takes that of the first at its next look.
    """
    from outlive.api import is_renewal_due

    clock = SystemClock()
    found = await keys.read_token(TOKEN_FILE)
    if not is_renewal_due(found.issued, clock):
        return token.replace(found.secret, found.issued)
    secret, now = SystemIds().new_token(), as_datetime(clock.now())
    await keys.replace_token(TOKEN_FILE, found, secret, now)
    return token.replace(secret, now)


async def _follow_incarnation(store: KubernetesStore | ZooKeeperStore, keys: SharedKeys) -> None:
    """Notice when somebody says that the store was restored. Until cancelled."""
    from outlive.runtime import Periodic, log_errors

    async def read() -> None:
        store.become(await keys.read_incarnation())

    failed = log_errors(_log, "controller.incarnation_not_read")
    await Periodic(read, INCARNATION_S, clock=SystemClock(), wait_first=True, failed=failed).run()


async def _follow_kinds(store: KubernetesStore) -> None:
    """Notice when the kinds are replaced by those of an older version, or are gone. Until cancelled."""
    from outlive.runtime import Periodic, log_errors
    from outlive.store.kubernetes import CRDS_PATH, check_kinds_served

    async def check() -> None:
        try:
            await check_kinds_served(store)
        except Refused as error:
            store.troubles.note_failure("CHECK", CRDS_PATH, error)
        else:
            store.troubles.note_success("CHECK", CRDS_PATH)

    failed = log_errors(_log, "controller.kinds_not_read")
    await Periodic(check, KINDS_S, clock=SystemClock(), wait_first=True, failed=failed).run()


async def admission(
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Where each API server reaches a controller; else the Service.")
    ] = "",
    pods: Annotated[
        bool, typer.Option("--pods", help="The webhook that guards network annotations of pods instead.")
    ] = False,
    identities: Annotated[
        str, typer.Option("--identities", metavar="FILE", help="With --pods: network.pods.identities.")
    ] = "",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Print the webhook by which an API server asks the controllers before each write of Outlive's kinds, as YAML.

    For daemons and people that write to the API server directly: outlive admission | kubectl apply -f -. Its reader
    can ask which writes are allowed, and nothing else.
    """
    from outlive.api import webhook_manifest
    from outlive.drivers.kubernetes import admission_key, read_authority
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    if url and not url.startswith("https://"):
        raise Usage(f"{url[:200]!r} is no address", place="--url", remedy="write one such as https://127.0.0.1:8443")
    store = KubernetesStore(cluster_access(kubeconfig, context), clock=SystemClock(), random=system_random())
    try:
        key = await admission_key(store, namespace)
        authority = await read_authority(store, namespace, AUTHORITY_FILE)
    except NotFound as error:
        remedy = "start the controllers first: they make it"
        raise NotFound(error.message, place=f"namespace {namespace}", remedy=remedy) from None
    finally:
        await store.close()
    if pods:
        from outlive.api import pods_webhook_manifest
        from outlive.drivers.kubernetes import read_identities

        known = read_identities(identities)
        write(yaml_text(pods_webhook_manifest(authority, key, known, namespace=namespace, url=url)))
        return
    write(yaml_text(webhook_manifest(authority, key, namespace=namespace, url=url)))


def cluster_roles() -> None:
    """Print roles of a Kubernetes cluster for those who write to its API server directly, as YAML."""
    from outlive.resources.cluster_roles import cluster_roles as made

    write("---\n".join(yaml_text(one) for one in made()))


async def restored(
    store: SharedStore = StoreKind.KUBERNETES,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
    zookeeper: ZooKeeperFile = "",
    yes: Yes = False,
) -> None:
    """Announce that the data of etcd or ZooKeeper was restored: the cluster pauses until its hosts have registered."""
    from outlive.drivers.kubernetes import SecretKeys
    from outlive.drivers.zookeeper import ZnodeKeys

    keys: SharedKeys
    opened: KubernetesStore | ZooKeeperStore
    if store is StoreKind.ZOOKEEPER:
        opened = ensemble = zookeeper_store(zookeeper)
        keys = ZnodeKeys(ensemble, SystemClock())
    else:
        opened = cluster = kubernetes_store(store, kubeconfig, context)
        keys = SecretKeys(cluster, namespace)
    try:
        before = await keys.read_incarnation()
        ask("Nothing is started, moved or recovered until all hosts have registered what they run. Go on?", yes)
        now = SystemIds().new_uuid()
        await keys.write_incarnation(now)
    finally:
        await opened.close()
    say(f"the store is {now}, no more {before or 'nothing'}; the cluster is paused within {INCARNATION_S:g} s")
    say("outlive status says whom the pause waits for; outlive restore --confirm HOST gives up a host that is lost")
