"""The engine once more, host by host in plain Python.

It gives the same answer as ``outlive.placement.engine`` for every fleet and request, only slowly: it reads host
records and reservations instead of columns, and asks each filter about each host. Tests hold the two against each
other; whoever doubts an answer can do the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.placement.engine import STEP_ERRORS, Engine
from outlive.placement.pipelines import BoundFilter, BoundWeigher
from outlive.placement.request import Intent, PlacementRequest
from outlive.placement.scaling import squash_one
from outlive.placement.steps import Run
from outlive.placement.ties import tie_key
from outlive.placement.weighers.slots import own_slot_hosts


def rank_plain(engine: Engine, request: PlacementRequest) -> list[tuple[str, float]]:
    """(host, weight), best first: what ``engine.rank`` answers. The same errors are raised."""
    pipeline = engine.pipeline(request)
    run = engine.start(request, pipeline)
    gathered = engine.gathers(request, pipeline)
    everybody = gathered or request.hosts is None
    hosts = list(engine.fleet.names if everybody else dict.fromkeys(request.hosts or ()))
    for bound in engine.filters(request, pipeline):
        hosts = _keep(run, bound, hosts)
    weights = dict.fromkeys(hosts, 0.0)
    if request.weights and request.hosts is not None and not gathered:
        given = dict(zip(request.hosts, request.weights, strict=True))
        weights = {host: squash_one(given[host]) if pipeline.weighers else given[host] for host in hosts}
    for weigher in pipeline.weighers:
        hosts = _add(run, weigher, hosts, weights)
    return _sorted(engine, request, hosts, weights)


def _keep(run: Run, bound: BoundFilter, hosts: list[str]) -> list[str]:
    """The hosts that one filter leaves."""
    if bound.step.skips(run):
        return hosts
    try:
        bound.step.prepare_plain(run)
        return [host for host in hosts if bound.step.check(run, host) is None]
    except STEP_ERRORS:
        return [] if bound.on_error == "reject" else hosts


def _add(run: Run, bound: BoundWeigher, hosts: list[str], weights: dict[str, float]) -> list[str]:
    """Add one weigher's scores to the weights; the hosts that it leaves."""
    if not hosts or bound.step.skips(run):
        return hosts
    try:
        scores = bound.step.weigh_plain(run, hosts)
    except STEP_ERRORS:
        return [] if bound.on_error == "reject" else hosts
    for host, score in zip(hosts, scores, strict=True):
        weights[host] += bound.multiplier * squash_one(score)
    return hosts


def _sorted(
    engine: Engine, request: PlacementRequest, hosts: Sequence[str], weights: dict[str, float]
) -> list[tuple[str, float]]:
    settings = engine.settings
    ranked = sorted(hosts, key=lambda host: (-weights[host], tie_key(request.resource_id, host), host))
    if request.intent is Intent.EVACUATE and settings.own_slots_first:
        own = own_slot_hosts(engine.fleet, request.resource_id)
        ranked = [host for host in ranked if host in own] + [host for host in ranked if host not in own]
    if settings.nova_limit_hosts_to_request and request.hosts:
        named = set(request.hosts)
        ranked = [host for host in ranked if host in named]
    if request.options.max_candidates:
        ranked = ranked[: request.options.max_candidates]
    return [(host, weights[host]) for host in ranked]
