"""``outlive migrate-store``: the cluster of a state directory goes on, on a Kubernetes API server.

The server is stopped. Everything is checked before anything is written; then the keys are shared, withheld from
controllers, the directory is marked, and all objects are written and read back (docs/operating/kubernetes.md#move).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlive.api.config import AUTHORITY_FILE, TOKEN_FILE
from outlive.base.clock import SystemClock, as_datetime
from outlive.base.errors import BadInput, NotFound, Refused
from outlive.base.ids import SystemIds
from outlive.base.random import system_random
from outlive.cli.access import default_state_dir
from outlive.cli.arguments import Yes
from outlive.cli.controller import NAMESPACE, Context, Kubeconfig, Namespace
from outlive.cli.output import Report, progress
from outlive.cli.questions import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlive.cli.tables import TextTable
    from outlive.resources import Resource
    from outlive.store.kubernetes import KubernetesStore
    from outlive.store.sqlite.moved import MovedStore


async def migrate_store(
    output: Report,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", envvar="OUTLIVE_STATE_DIR", help="What outlive up ran on."),
    ] = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
    yes: Yes = False,
) -> None:
    """Move a cluster from its state directory to a Kubernetes API server. No VM is touched.

    Stop outlive up before. From the first write on it refuses the directory. Repeat the command if it is interrupted.
    The cluster is paused there until its hosts have registered what they run.
    """
    from outlive.drivers.kubernetes.store_move import check_at_rest, check_target, read_objects
    from outlive.store.kubernetes import KubernetesStore, cluster_access
    from outlive.store.kubernetes.served import check_kinds_served
    from outlive.store.sqlite.exchange import finish_interrupted
    from outlive.store.sqlite.moved import MovedStore, read_moved
    from outlive.store.sqlite.store import DATABASE_FILE, SqliteStore

    directory = state_dir if state_dir is not None else default_state_dir()
    if not (directory / DATABASE_FILE).exists():
        raise NotFound("no store here", place=str(directory), remedy="name the directory of outlive up by --state-dir")
    access = cluster_access(kubeconfig, context)
    target = KubernetesStore(access, clock=SystemClock(), random=system_random())
    source = None
    try:
        finish_interrupted(directory)
        source = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())
        moved = read_moved(directory)
        if moved is not None and (moved.server, moved.namespace) != (access.server, namespace):
            raise Refused(
                f"it is being moved, or was moved, to {moved.server}, namespace {moved.namespace}",
                place=str(directory),
                remedy="move it there, or go back first: docs/operating/kubernetes.md#back",
            )
        objects = await read_objects(source)
        check_at_rest(objects)
        await check_kinds_served(target)
        if moved is None:
            check_target(await read_objects(target), ())
            ask(f"{len(objects)} objects are moved to {access.server}, and nothing runs here any more. Go on?", yes)
        note = moved or MovedStore(
            server=access.server, namespace=namespace, source=source.incarnation, at=as_datetime(SystemClock().now())
        )
        counts = await _move(target, directory, note, objects)
    finally:
        if source is not None:
            await source.close()
        await target.close()
    document = {"server": access.server, "namespace": namespace, "moved": dict(sorted(counts.items()))}
    output.show(document, lambda: [_table(counts), *_steps(directory, access.server, namespace)])


async def _move(
    target: KubernetesStore, directory: Path, note: MovedStore, objects: Sequence[Resource]
) -> Counter[str]:
    """Share the keys, mark the directory, move the objects, and let the controllers begin."""
    from outlive.drivers.kubernetes.shared_keys import begin_move, end_move
    from outlive.drivers.kubernetes.store_move import move_objects
    from outlive.store.sqlite.moved import write_moved

    files = _keys(directory, objects)
    new = SystemIds().uuid()
    move = await begin_move(target, note.namespace, directory, files, source=note.source, incarnation=new)
    if move.over:
        return Counter(one.kind() for one in objects)
    write_moved(directory, note)
    with progress("moving objects", len(objects)) as bar:
        counts = await move_objects(objects, target, move, SystemClock(), bar.at)
    await end_move(target, note.namespace, note.source)
    return counts


def _keys(directory: Path, objects: Sequence[Resource]) -> tuple[str, ...]:
    """Names of the key files, all of which are there and fit. ``Refused`` and ``BadInput`` where one is missing."""
    from outlive.api.lifetimes import StateToken
    from outlive.api.tls import AUTHORITY_KEY_FILE, NEXT_FILE, NEXT_KEY_FILE, ServerTls
    from outlive.drivers.secrets import KEY_FILE, ClusterKey, SealingKey
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


def _table(counts: Counter[str]) -> TextTable:
    from outlive.cli.tables import TextTable

    rows = [(kind, str(count)) for kind, count in sorted(counts.items())]
    return TextTable(("KIND", "OBJECTS"), (*rows, ("all", str(counts.total()))), numbers=frozenset({"OBJECTS"}))


def _steps(directory: Path, server: str, namespace: str) -> list[str]:
    steps = [
        f"put what {directory}/outlive.yaml says into deploy/kubernetes/outlive.yaml; api.names has every name and "
        "address at which hosts look for the server",
        "start the controllers: replicas: 2 in deploy/kubernetes/controller.yaml, kubectl apply -k deploy/kubernetes",
        "have the server's address lead to them, or write theirs into server.url of each host's "
        "/etc/outlive/node.yaml and restart outlive node there; VMs run on",
        "wait until outlive status does not say any more that the cluster is paused; a host that is lost for good: "
        "outlive restore --confirm HOST",
        "outlive arm --cluster",
        f"back up etcd, and Secret {namespace}/outlive-keys apart from it",
    ]
    lines = [f"All objects are on {server}; outlive up refuses {directory} from now on. Now, in this order:"]
    return [*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
