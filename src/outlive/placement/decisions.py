"""Placement's decisions as pure functions of JSON: ``outlive decide placement.rank < in.json``.

Each takes hosts and reservations as resources and a request, builds a fleet, and answers; nothing is kept.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from outlive.base.errors import BadInput
from outlive.placement.capacity import CapacityTable, capacity_table
from outlive.placement.engine import Engine
from outlive.placement.errors import PipelineNotReady
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable, admit
from outlive.placement.ranking import Ranking, RankingDocument, squash
from outlive.placement.request import PlacementRequest
from outlive.placement.settings import PlacementSettings
from outlive.placement.steps import Reason
from outlive.resources import Hypervisor, Pipeline, Reservation
from outlive.runtime.decisions import Decision


class PlacementInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request and the world that it meets. Shipped pipelines are known unless one of that name is given."""

    request: PlacementRequest
    hosts: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    settings: PlacementSettings = PlacementSettings()
    why: bool = True
    """Give a reason for every host that was refused."""


class FilterOutput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which hosts pass, in name order, and why the others do not."""

    kept: tuple[str, ...]
    rejected: dict[str, Reason]
    refusal: Reason | None = None


class Contribution(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one weigher adds to a host's weight."""

    weigher: str
    activation: float
    multiplier: float
    added: float


class WeighOutput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The weight of every host that passes, best first in ``order``, and what it is made of."""

    order: tuple[str, ...]
    incoming: dict[str, float]
    contributions: dict[str, tuple[Contribution, ...]]
    weights: dict[str, float]


def rank(given: PlacementInput) -> RankingDocument:
    """The whole ranking."""
    return _ranking(given).document()


def filter_hosts(given: PlacementInput) -> FilterOutput:
    """Only the filters' part."""
    ranking = _ranking(msgspec.structs.replace(given, why=True))
    kept = set(ranking.names(np.flatnonzero(ranking.run.candidates)))
    rejected = {host: reason for host, reason in sorted(ranking.rejected.items()) if host not in kept}
    return FilterOutput(kept=tuple(sorted(kept)), rejected=rejected, refusal=ranking.refusal)


def weigh_hosts(given: PlacementInput) -> WeighOutput:
    """Only the weighers' part, taken apart by weigher."""
    ranking = _ranking(given)
    incoming = dict(zip(ranking.names(ranking.start), ranking.normalized.tolist(), strict=True))
    parts: dict[str, list[Contribution]] = {host: [] for host in ranking.hosts}
    for trace in ranking.traces:
        if trace.kind != "weigher":
            continue
        activations = trace.activations()
        bounded = (trace.multiplier * squash(activations)).tolist()
        hosts = ranking.names(np.flatnonzero(trace.kept))
        for host, activation, added in zip(hosts, activations.tolist(), bounded, strict=True):
            if host in parts:
                parts[host].append(
                    Contribution(weigher=trace.name, activation=activation, multiplier=trace.multiplier, added=added)
                )
    return WeighOutput(
        order=ranking.hosts,
        incoming={host: incoming[host] for host in ranking.hosts},
        contributions={host: tuple(found) for host, found in parts.items()},
        weights=dict(zip(ranking.hosts, ranking.scores, strict=True)),
    )


def capacity(given: PlacementInput) -> CapacityTable:
    """Capacity, what is held, and how often the request fits, host by host."""
    return capacity_table(_fleet(given), given.request)


def _fleet(given: PlacementInput) -> Fleet:
    fleet = Fleet(given.settings)
    for host in given.hosts:
        if fleet.host(host.name) is not None:
            raise BadInput(f"host {host.name} is given twice", place="hosts", remedy="names are unique")
        fleet.upsert_host(host)
    for reservation in given.reservations:
        fleet.upsert_reservation(reservation)
    return fleet


def _ranking(given: PlacementInput) -> Ranking:
    table = PipelineTable.shipped()
    for pipeline in given.pipelines:
        admission = admit(pipeline)
        if admission.errors:
            raise PipelineNotReady("; ".join(admission.errors), place=f"pipelines: {pipeline.name}")
        table.put(pipeline)
    request = given.request
    if not request.pipeline and len(given.pipelines) == 1:
        request = msgspec.structs.replace(request, pipeline=given.pipelines[0].name)
    return Engine(_fleet(given), table).rank(request, why=given.why)


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision("placement.rank", rank, PlacementInput, RankingDocument, "Which hosts may take a request, best first."),
    Decision("placement.filter", filter_hosts, PlacementInput, FilterOutput, "Which hosts pass, and why not."),
    Decision("placement.weigh", weigh_hosts, PlacementInput, WeighOutput, "What each weigher adds to each host."),
    Decision(
        "placement.capacity", capacity, PlacementInput, CapacityTable, "What each host has, holds and could give."
    ),
)
