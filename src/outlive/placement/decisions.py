"""Placement's decision as a pure function of JSON: ``outlive decide placement.rank < in.json``.

It takes hosts and reservations as resources and a request, builds a fleet, and answers; nothing is kept.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.placement.engine import Engine
from outlive.placement.errors import PipelineNotReady
from outlive.placement.explanation import Explanation, explain, explanation_text
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable, admit
from outlive.placement.ranking import Ranking, RankingDocument
from outlive.placement.request import PlacementRequest
from outlive.placement.settings import PlacementSettings
from outlive.resources import CommittedResource, Hypervisor, Knowledge, Pipeline, ProjectQuota, Reservation
from outlive.runtime import Decision


class PlacementInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request and the world that it meets. Shipped pipelines are known unless one of that name is given."""

    request: PlacementRequest
    hosts: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    commitments: tuple[CommittedResource, ...] = ()
    quotas: tuple[ProjectQuota, ...] = ()
    knowledge: tuple[Knowledge, ...] = ()
    """Records that steps work with."""
    now: float = 0.0
    """Unix time; commitments begin and end."""
    settings: PlacementSettings = PlacementSettings()
    why: bool = True
    """Give a reason for every host that was refused."""


class ExplainedAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a ranking is as it is."""

    text: str
    facts: Explanation


def rank(given: PlacementInput) -> RankingDocument:
    """The whole ranking."""
    return _build_ranking(given).to_document()


def explain_answer(given: PlacementInput) -> ExplainedAnswer:
    """What the history says about such an answer."""
    facts = explain(_build_ranking(given))
    return ExplainedAnswer(text=explanation_text(facts), facts=facts)


def _build_ranking(given: PlacementInput) -> Ranking:
    fleet = Fleet(given.settings)
    for host in given.hosts:
        if fleet.find_host(host.name) is not None:
            raise BadInput(f"host {host.name} is given twice", place="hosts", remedy="names are unique")
        fleet.upsert_host(host)
    for reservation in given.reservations:
        fleet.upsert_reservation(reservation)
    for commitment in given.commitments:
        fleet.quotas.upsert_commitment(commitment)
    for quota in given.quotas:
        fleet.quotas.upsert_quota(quota)
    for one in given.knowledge:
        fleet.records.upsert(one)
    table = PipelineTable.with_shipped(fleet.records.usable_names)
    for pipeline in given.pipelines:
        admission = admit(pipeline)
        if admission.errors:
            raise PipelineNotReady("; ".join(admission.errors), place=f"pipelines: {pipeline.name}")
        table.put(pipeline)
    request = given.request
    if not request.pipeline and len(given.pipelines) == 1:
        request = msgspec.structs.replace(request, pipeline=given.pipelines[0].name)
    return Engine(fleet, table, now=given.now).rank(request, why=given.why)


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision("placement.rank", rank, PlacementInput, RankingDocument, "Which hosts may take a request, best first."),
    Decision("placement.explain", explain_answer, PlacementInput, ExplainedAnswer, "Why a ranking is as it is."),
)
