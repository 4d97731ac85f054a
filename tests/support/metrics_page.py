"""Every metric that a process of Outlive serves, from the processes' own registries, as docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from prometheus_client.core import Metric

from outlive.api import ApiDeps, ExpiryGauges, Tokens, create_app
from outlive.base import Instant, LoopClock, Random, SeededIds
from outlive.commitments import CommitmentSource, ProjectSource
from outlive.failover import Inline
from outlive.failover.report import host_metrics, reservation_metrics
from outlive.inventory import InventorySource
from outlive.network import NorthboundDb, PodReports, SouthboundDb
from outlive.node import storage_statistics
from outlive.node.vm import NodeSettings
from outlive.recovery import ClusterFigures, cluster_metrics
from outlive.roles import SECTIONS, Limes, NetworkDatabases, NodePorts, NodeRole, Ports, UpRole, role_settings
from outlive.runtime import BackupKeeper, BackupSettings, ClusterEvents, Metrics, NotifierPorts
from outlive.storage import PREFIX, AgentMetrics
from outlive.store import MemoryStore
from tests.support.loops import run

NOBODY = cast("Any", SimpleNamespace(name="nobody"))
"""A part that is put in and never called."""


class MetricRow(NamedTuple):
    """One metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def _rows(metrics: Metrics, further: Iterable[Metric] = (), prefix: str = "outlive_") -> Iterator[MetricRow]:
    for name, family in metrics._families.items():
        inner = family._metric
        yield MetricRow(f"{prefix}{name.removesuffix('_total')}", inner._type, family.label_names, inner._documentation)
    late = [one for collector in metrics._registry._collector_to_names for one in _late(collector)]
    for one in (*late, *further):
        yield MetricRow(f"{prefix}{one.name}", one.type, tuple(getattr(one, "_labelnames", ())), one.documentation)


def _late(collector: Any) -> list[Metric]:
    return list(collector._collect()) if hasattr(collector, "_collect") else []


def _empty_figures() -> ClusterFigures:
    return ClusterFigures(
        at=Instant(0.0),
        hosts={},
        unwatched=0,
        vms={},
        waiting={},
        faults={},
        health=100,
        issues={},
        unproven={},
        coordinators=0,
        coordinators_alive=0,
        guards_missing=0,
        rehearsals={},
        unprovable=0,
        wrote_at=None,
    )


def _server_rows() -> list[MetricRow]:
    random, clock = Random(1), LoopClock()
    ids = SeededIds(random)
    store = MemoryStore(clock, ids)
    role = UpRole(
        store,
        role_settings({name: kind() for name, kind in SECTIONS.items()}),
        Ports(
            computer=Inline(),
            inventory=cast("InventorySource", NOBODY),
            limes=Limes(cast("ProjectSource", NOBODY), cast("CommitmentSource", NOBODY)),
            notify=NotifierPorts({}),
            network=NetworkDatabases(cast("NorthboundDb", NOBODY), cast("SouthboundDb", NOBODY)),
        ),
        identity="page",
        clock=clock,
        random=random,
        ids=ids,
    )
    PodReports(cast("ClusterEvents", NOBODY), role.metrics)
    create_app(ApiDeps(store=store, clock=clock, ids=ids, tokens=Tokens([]), metrics=role.metrics, version=""))
    tokens = SimpleNamespace(informer=SimpleNamespace(items=list))
    storage = [
        *storage_statistics._cluster_metrics({}),
        *storage_statistics._daemon_metrics({}),
        *storage_statistics._pool_metrics({}),
    ]
    expiries = ExpiryGauges(cast("Any", tokens), dict).collect()
    slots = [*reservation_metrics([]), *host_metrics([], [])]
    backups = BackupKeeper(NOBODY, BackupSettings(), LoopClock(), place="").collect()  # type: ignore[arg-type]
    return list(_rows(role.metrics, [*cluster_metrics(_empty_figures()), *slots, *storage, *expiries, *backups]))


def _daemon_rows() -> list[MetricRow]:
    random, clock = Random(1), LoopClock()
    ids = SeededIds(random)
    store = MemoryStore(clock, ids)
    ports = NodePorts(NOBODY, SimpleNamespace(boot_id=lambda: "b", machine_id=lambda: "m"), NOBODY, NOBODY, NOBODY)  # type: ignore[arg-type]
    role = NodeRole(store, store, NodeSettings(), ports, host="page", clock=clock, random=random, ids=ids)
    role._build_fencer()
    return list(_rows(role.metrics))


def _agent_rows() -> list[MetricRow]:
    metrics = AgentMetrics(lambda: None)
    return list(_rows(metrics._metrics, metrics._collect_ages(), PREFIX))


async def _all() -> dict[str, list[MetricRow]]:
    return {
        "The server": _server_rows(),
        "The daemon of a host": _daemon_rows(),
        "The storage agent": _agent_rows(),
    }


@cache
def _found() -> dict[str, list[MetricRow]]:
    return run(_all())


def metric_names() -> set[str]:
    """Names of all metrics, with the default prefix; of histograms also with their endings."""
    rows = [row for found in _found().values() for row in found]
    endings = {f"{row.name}_{end}" for row in rows if row.kind == "histogram" for end in ("bucket", "sum", "count")}
    return {row.name for row in rows} | endings


def metrics_text() -> str:
    """All metrics by process, as Markdown."""
    parts = (f"\n## {title}\n\n{''.join(_lines(rows))}" for title, rows in _found().items())
    return "".join(parts)


def _lines(rows: Iterable[MetricRow]) -> Iterator[str]:
    for row in sorted(set(rows)):
        name = f"{row.name}_total" if row.kind == "counter" else row.name
        labels = f"{{{','.join(row.labels)}}}" if row.labels else ""
        kind = " (histogram)" if row.kind == "histogram" else ""
        meaning = " ".join(row.meaning.split()).replace(", seconds since 1970", "")
        yield f"- `{name}{labels}`{kind}: {meaning}\n"
