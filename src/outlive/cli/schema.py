"""``outlive schema``: by which storage schema a cluster works, how it comes to another one, and the tree as a file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from outlive.base import BadInput, ExitCode, NotFound, Refused, Usage, as_datetime, natural_key, shown_time, write_whole
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import Yes
from outlive.cli.commands import command, make_group
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Output, Report, make_table, write
from outlive.cli.questions import ask
from outlive.node import HostLife, HostLiveness
from outlive.resources import CLUSTER, Cluster, ClusterSpec, Hypervisor, SchemaWish
from outlive.store import change_spec, list_all, read
from outlive.store.schema import BASE, SchemaPlanInput, latest_version, load_document, plan_schema

if TYPE_CHECKING:
    from outlive.store import Store
    from outlive.store.zookeeper import ZooKeeperStore

GONE_S: Final = 86_400.0
"""How long a host must have been stopped or dead before it may be excluded."""
GONE: Final = (HostLife.STOPPED, HostLife.DEAD)

app = make_group("The storage schema: where and in which version everything is stored, and how that changes.")

To = Annotated[int | None, typer.Option("--to", "-t", metavar="NUMBER", help="Which schema; else the newest one.")]


@command(app, "status")
async def show_status(access: Access, output: Output) -> None:
    """By which schema the cluster works, which ones its hosts know, and whom a change waits for."""
    async with access.open() as store:
        cluster = await _read_cluster(store)
        hosts = await _list_hosts(store)
    schema, wish = cluster.status.schema, cluster.spec.schema
    document: dict[str, Any] = {
        "version": cluster.schema_version,
        "latest": latest_version(),
        "wanted": wish.to,
        "excluded": wish.exclude,
        "hold": msgspec.to_builtins(schema.hold),
        "waitingFor": schema.waiting_for,
        "journal": msgspec.to_builtins(schema.journal),
        "hosts": {one.name: msgspec.to_builtins(one.status.schema) for one in hosts},
    }
    output.show(document, lambda: list(_status_lines(cluster, hosts)))


def _status_lines(cluster: Cluster, hosts: list[Hypervisor]) -> Iterable[Any]:
    schema, wish = cluster.status.schema, cluster.spec.schema
    yield f"the storage schema is {cluster.schema_version}; this version of Outlive knows {latest_version()}"
    if wish.to is not None:
        yield f"somebody asked for schema {wish.to}"
    if wish.exclude:
        yield f"not waited for: {', '.join(wish.exclude)}"
    if schema.hold is not None:
        yield f"it changes to {schema.hold.to} since {shown_time(schema.hold.since)}: no host is condemned meanwhile"
    if schema.waiting_for:
        yield f"waiting for: {', '.join(schema.waiting_for)}"
    for step in schema.journal:
        yield f"{shown_time(step.ended_at)}: from {step.start} to {step.to}, by {step.by}"
    if hosts:
        rows = [[one.name, one.status.schema.active or "", one.status.schema.latest or ""] for one in hosts]
        yield make_table(["Host", "Active", "Latest"], rows, numbers=["Active", "Latest"])


@command(app, "plan")
async def plan(access: Access, output: Report, to: To = None) -> None:
    """What changes on the way to a schema: paths, and kinds that are stored in another version. Nothing is written."""
    async with access.open() as store:
        start = (await _read_cluster(store)).schema_version
    target = latest_version() if to is None else to
    step = 1 if target >= start else -1
    documents = [load_document(version) for version in range(start, target + step, step)]
    ops = plan_schema(
        SchemaPlanInput(
            start=start,
            to=target,
            schemas={str(one.version): one.zookeeper for one in documents},
            tree=tuple(documents[0].zookeeper[BASE].values()),
        )
    ).ops
    first, last = documents[0].kinds, documents[-1].kinds
    kinds = {name: [first[name], last[name]] for name in first if name in last and first[name] != last[name]}

    def render_lines() -> list[Any]:
        if not ops and not kinds:
            return [f"nothing changes from schema {start} to {target}"]
        changed = [f"{name}: stored as {after}, no more as {before}" for name, (before, after) in kinds.items()]
        return [f"from schema {start} to {target}:", *(" ".join(filter(None, op)) for op in ops), *changed]

    output.show({"from": start, "to": target, "ops": ops, "kinds": kinds}, render_lines)


@command(app, "upgrade")
async def upgrade(
    access: WriteAccess,
    to: To = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="HOST", help="Do not wait for it: it has been gone for more than a day."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Change the cluster to a schema once all hosts know it; an older one goes back.

    Without --to it goes to the newest that all hosts know, which also happens automatically.
    """
    async with access.open(write=True) as store:
        cluster = await _read_cluster(store)
        names = tuple(dict.fromkeys(exclude or ()))
        if names:
            _check_gone(
                names,
                await _list_hosts(store),
                await _read_host_liveness(store, access),
                as_datetime(access.clock.now()),
            )
        if to is not None and not 1 <= to <= latest_version():
            raise Refused(
                f"storage schema {to} is not known here",
                place="--to",
                remedy=f"this version of Outlive knows 1 to {latest_version()}; install the one that has it",
            )
        if to is not None and to < cluster.schema_version:
            ask(f"The cluster goes back from schema {cluster.schema_version} to {to}. Go on?", yes)

        def set_schema(found: Cluster) -> ClusterSpec:
            return msgspec.structs.replace(found.spec, schema=SchemaWish(to=to, exclude=names))

        await change_spec(store, Cluster, CLUSTER, set_schema, clock=access.clock)
    target = "the newest schema that all hosts know" if to is None else f"schema {to}"
    write(f"the controllers bring the cluster to {target}; outlive schema status shows how far they are\n")


def _check_gone(
    names: Iterable[str], hosts: Iterable[Hypervisor], life: dict[str, HostLiveness], now: datetime
) -> None:
    """``Refused`` unless each was stopped or proven dead more than a day ago."""
    known = {one.name for one in hosts}
    for name in names:
        if name not in known:
            raise NotFound(f"there is no host {name[:80]!r} with a daemon", place="--exclude")
        found = life.get(name)
        if found is None or found.state not in GONE:
            what = "nobody knows how it is" if found is None else f"it is {found.state}"
            raise Refused(f"{name} may not be excluded: {what}", remedy="upgrade it, or stop or fence it")
        if found.since is None or now - found.since < timedelta(seconds=GONE_S):
            since = "nobody knows since when" if found.since is None else f"only since {shown_time(found.since)}"
            raise Refused(
                f"{name} may not be excluded: it is gone, but {since}", remedy="wait for a day, or upgrade it"
            )


async def _read_host_liveness(store: Store, access: Access) -> dict[str, HostLiveness]:
    life = await read_liveness(store, access)
    return {one.name: life.liveness_of_host(one.name) async for one in list_all(store, Hypervisor)}


@command(app, "backup")
async def backup_tree(
    access: Access, file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that is not there yet.")]
) -> None:
    """Write the tree of an ensemble of ZooKeeper, as it is stored, into a file; outlive backup is for all stores."""
    from outlive.store.zookeeper import dump_tree

    if file.exists():
        raise Usage(f"{file} exists", remedy="name another file")
    async with access.open() as store:
        found = await dump_tree(_require_zookeeper(store), clock=access.clock)
    try:
        write_whole(file, msgspec.json.format(msgspec.json.encode(found), indent=1))  # the keys are in it
    except OSError as error:
        raise BadInput(
            f"cannot be written: {error.strerror}", place=str(file), remedy="check its folder and the space there"
        ) from None
    write(f"{len(found.nodes)} znodes of schema {found.version} are in {file}\n")


@command(app, "restore")
async def restore(
    access: WriteAccess,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What outlive schema backup has written.")],
    yes: Yes = False,
) -> ExitCode | None:
    """Put such a file back: all of the tree is replaced. Refused while any daemon may run, and for another schema."""
    from outlive.drivers import read_input
    from outlive.store.zookeeper import TreeFile, restore_tree

    try:
        found = msgspec.json.decode(read_input(file), type=TreeFile)
    except msgspec.DecodeError as error:
        raise BadInput(f"is no backup of a tree: {error}", place=str(file)) from None
    async with access.open(write=True) as store:
        tree = _require_zookeeper(store)
        running = [name for name, one in (await _read_host_liveness(store, access)).items() if one.state not in GONE]
        if running:
            names = ", ".join(sorted(running, key=natural_key))
            raise Refused(f"hosts may be at work: {names}", remedy="stop their daemons, and the controllers, first")
        ask(f"Everything in {tree.client.access.place} is replaced by what is in {file}. Go on?", yes)
        count = await restore_tree(tree, found)
    write(f"{count} znodes are restored: outlive restored --store zookeeper says so to the cluster\n")
    return None


def _require_zookeeper(store: Store) -> ZooKeeperStore:
    from outlive.store.zookeeper import ZooKeeperStore

    if not isinstance(store, ZooKeeperStore):
        raise Usage("only an ensemble of ZooKeeper has a tree", remedy="give --store zookeeper, or use outlive backup")
    return store


async def _read_cluster(store: Store) -> Cluster:
    return await read(store, Cluster, CLUSTER) or Cluster()


async def _list_hosts(store: Store) -> list[Hypervisor]:
    """Those with a daemon of ours, in natural order."""
    found = [one async for one in list_all(store, Hypervisor) if one.spec.management == "node"]
    return sorted(found, key=lambda one: natural_key(one.name))
