"""``outlive migrate-store``: the cluster of a state directory goes on, on an API server or an ensemble of ZooKeeper.

The server is stopped. Everything is checked before anything is written; then the keys are shared, withheld from
controllers, the directory is marked, and all objects are written and read back (docs/how-to/kubernetes.md#move,
docs/how-to/zookeeper.md#move).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from outlive.api import AUTHORITY_FILE, TOKEN_FILE
from outlive.base import BadInput, NotFound, Refused, SystemClock, SystemIds, as_datetime
from outlive.cli.access import StoreKind, default_state_dir
from outlive.cli.arguments import Yes
from outlive.cli.controller import (
    NAMESPACE,
    Context,
    Kubeconfig,
    Namespace,
    SharedStore,
    ZooKeeperFile,
    kubernetes_store,
    zookeeper_store,
)
from outlive.cli.output import Report, show_progress
from outlive.cli.questions import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlive.cli.tables import TextTable
    from outlive.drivers import SharedKeys
    from outlive.resources import Resource
    from outlive.store.kubernetes import KubernetesStore
    from outlive.store.sqlite import MovedStore
    from outlive.store.zookeeper import ZooKeeperStore


class _Target(NamedTuple):
    """Where the cluster goes."""

    store: KubernetesStore | ZooKeeperStore
    keys: SharedKeys
    server: str
    namespace: str
    """Of the Secret with the keys; empty on ZooKeeper."""


async def migrate_store(
    output: Report,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", envvar="OUTLIVE_STATE_DIR", help="What outlive up ran on."),
    ] = None,
    store: SharedStore = StoreKind.KUBERNETES,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
    zookeeper: ZooKeeperFile = "",
    yes: Yes = False,
) -> None:
    """Move a cluster from its state directory to an API server or an ensemble of ZooKeeper. No VM is touched.

    Stop outlive up before. From the first write on it refuses the directory. Repeat the command if it is interrupted.
    The cluster is paused there until its hosts have registered what they run.
    """
    from outlive.drivers import check_at_rest, check_target, read_objects
    from outlive.store.kubernetes import KubernetesStore, check_kinds_served
    from outlive.store.sqlite import DATABASE_FILE, MovedStore, SqliteStore, finish_interrupted, read_moved

    directory = state_dir if state_dir is not None else default_state_dir()
    if not (directory / DATABASE_FILE).exists():
        raise NotFound("no store here", place=str(directory), remedy="name the directory of outlive up by --state-dir")
    target = _open_target(store, kubeconfig, context, namespace, zookeeper)
    source = None
    try:
        finish_interrupted(directory)
        source = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())
        note = MovedStore(
            server=target.server,
            namespace=target.namespace,
            source=source.incarnation,
            at=as_datetime(SystemClock().now()),
        )
        moved = read_moved(directory)
        if moved is not None and moved.place != note.place:
            raise Refused(
                f"it is being moved, or was moved, to {moved.place}",
                place=str(directory),
                remedy="move it there, or go back first: docs/how-to/kubernetes.md#back",
            )
        objects = await read_objects(source)
        check_at_rest(objects)
        if isinstance(target.store, KubernetesStore):
            await check_kinds_served(target.store)
        if moved is None:
            check_target(await read_objects(target.store), ())
            ask(f"{len(objects)} objects are moved to {target.server}, and nothing runs here any more. Go on?", yes)
        counts = await _move(target, directory, moved or note, objects)
    finally:
        if source is not None:
            await source.close()
        await target.store.close()
    document = {"server": target.server, "namespace": target.namespace, "moved": dict(sorted(counts.items()))}
    steps = _steps_on_kubernetes if target.namespace else _steps_on_zookeeper
    output.show(
        document, lambda: [_count_table(counts), *_number_steps(directory, target.server, steps(directory, target))]
    )


def _open_target(store: StoreKind, kubeconfig: str, context: str, namespace: str, zookeeper: str) -> _Target:
    from outlive.drivers.kubernetes import SecretKeys
    from outlive.drivers.zookeeper import ZnodeKeys
    from outlive.store.kubernetes import cluster_access

    if store is StoreKind.ZOOKEEPER:
        ensemble = zookeeper_store(zookeeper)
        return _Target(ensemble, ZnodeKeys(ensemble, SystemClock()), ensemble.client.access.place, "")
    cluster = kubernetes_store(store, kubeconfig, context)
    server = cluster_access(kubeconfig, context).server
    return _Target(cluster, SecretKeys(cluster, namespace), server, namespace)


async def _move(target: _Target, directory: Path, note: MovedStore, objects: Sequence[Resource]) -> Counter[str]:
    """Share the keys, mark the directory, move the objects, and let the controllers begin."""
    from outlive.drivers import move_objects
    from outlive.store.sqlite import write_moved

    files = _check_keys(directory, objects)
    new = SystemIds().new_uuid()
    move = await target.keys.begin_move(directory, files, source=note.source, incarnation=new)
    if move.over:
        return Counter(one.kind() for one in objects)
    write_moved(directory, note)
    with show_progress("moving objects", len(objects)) as bar:
        counts = await move_objects(objects, target.store, move, SystemClock(), bar.advance_to)
    await target.keys.end_move(note.source)
    return counts


def _check_keys(directory: Path, objects: Sequence[Resource]) -> tuple[str, ...]:
    """Names of the key files, all of which are there and fit. ``Refused`` and ``BadInput`` where one is missing."""
    from outlive.api import AUTHORITY_KEY_FILE, NEXT_FILE, NEXT_KEY_FILE, ServerTls, StateToken
    from outlive.drivers import KEY_FILE, ClusterKey, SealingKey
    from outlive.resources import Cluster

    if any((directory / name).exists() for name in (NEXT_FILE, NEXT_KEY_FILE)):
        raise Refused(
            "its authority is being replaced",
            place=str(directory),
            remedy="start outlive up, and end that: outlive tls",
        )
    wanted = {one.status.sealing_key for one in objects if isinstance(one, Cluster) and one.status.sealing_key}
    key = ClusterKey.read(directory / KEY_FILE) if wanted else ClusterKey.ensure(directory / KEY_FILE)
    if not {SealingKey.parse(one).id for one in wanted} <= set(key.ids):
        raise BadInput(
            "is the key of another cluster", place=str(directory / KEY_FILE), remedy="put the right one back"
        )
    clock = SystemClock()
    StateToken(directory / TOKEN_FILE, clock=clock, ids=SystemIds())
    ServerTls(directory, (), clock)
    return (AUTHORITY_FILE, AUTHORITY_KEY_FILE, KEY_FILE, TOKEN_FILE)


def _count_table(counts: Counter[str]) -> TextTable:
    from outlive.cli.tables import TextTable

    rows = [(kind, str(count)) for kind, count in sorted(counts.items())]
    return TextTable(("KIND", "OBJECTS"), (*rows, ("all", str(counts.total()))), numbers=frozenset({"OBJECTS"}))


def _steps_on_kubernetes(directory: Path, target: _Target) -> list[str]:
    return [
        f"put what {directory}/outlive.yaml says into deploy/kubernetes/outlive.yaml; api.names has every name and "
        "address at which hosts look for the server",
        "start the controllers: replicas: 2 in deploy/kubernetes/controller.yaml, kubectl apply -k deploy/kubernetes",
        "have the server's address lead to them, or write theirs into server.url of each host's "
        "/etc/outlive/node.yaml and restart outlive node there; VMs run on",
        *_LAST_STEPS,
        f"back up etcd, and Secret {target.namespace}/outlive-keys apart from it",
    ]


def _steps_on_zookeeper(directory: Path, target: _Target) -> list[str]:
    return [
        f"put what {directory}/outlive.yaml says into /etc/outlive/outlive.yaml of each machine with a controller; "
        "api.names has every name and address at which hosts look for the server",
        "start the controllers there: systemctl enable --now outlive-controller",
        f"copy {directory}/cluster-key to server.keyFile of each coordinator, and write server.store: zookeeper into "
        "its /etc/outlive/node.yaml; on the other hosts the addresses of all controllers into server.url; restart "
        "outlive node there; VMs run on",
        *_LAST_STEPS,
        "back up the ensemble: docs/how-to/zookeeper.md#backup",
    ]


_LAST_STEPS: Final = (
    "wait until outlive status does not say any more that the cluster is paused; a host that is lost for good: "
    "outlive restore --confirm HOST",
    "outlive arm --cluster",
)


def _number_steps(directory: Path, server: str, steps: list[str]) -> list[str]:
    lines = [f"All objects are on {server}; outlive up refuses {directory} from now on. Now, in this order:"]
    return [*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
