"""Placement as the rest of the process uses it: one fleet kept current, one engine.

A run gives nobody else a turn, so every call sees the fleet of one moment (docs/reference/placement.md#concurrency).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from outlive.base import Clock, OutliveError, Random, get_logger, request_context
from outlive.placement.engine import Engine
from outlive.placement.errors import RunRefused
from outlive.placement.external import ExternalAnswer, HostLists, answer, decode_request, render_refusal
from outlive.placement.fleet import Fleet
from outlive.placement.history import HistoryWriter
from outlive.placement.in_flight import InFlightWriter
from outlive.placement.metrics import PlacementMetrics
from outlive.placement.pipelines import PipelineTable
from outlive.placement.ranking import Ranking
from outlive.placement.request import SILENT, Intent, PlacementRequest
from outlive.placement.tracker import FAILED, UNTRACKED, PlacementTracker, TrackingOutcome
from outlive.placement.weighers import own_slot_rows, slots_of_vm_on
from outlive.resources import CommittedResource, Hypervisor, Knowledge, Pipeline, ProjectQuota, Reservation
from outlive.runtime import Informer, Metrics


def shuffle_top(hosts: Sequence[str], own: Collection[str], *, first: int, random: Random) -> list[str]:
    """The hosts with the first few permuted: places of own hosts among themselves, the others likewise."""
    result = list(hosts)
    head = range(min(first, len(result)))
    for places in ([at for at in head if result[at] in own], [at for at in head if result[at] not in own]):
        names = [result[at] for at in places]
        random.shuffle(names)
        for at, name in zip(places, names, strict=True):
            result[at] = name
    return result


API_PATH = "/scheduler/nova/external"
_log = get_logger("placement")
_API_LABELS = ("method", "path", "status", "error")


class PlacementService:
    """See the module. ``random`` permutes evacuations and nothing else."""

    def __init__(
        self,
        fleet: Fleet,
        pipelines: PipelineTable,
        *,
        clock: Clock,
        random: Random,
        metrics: Metrics | None = None,
    ) -> None:
        self.fleet = fleet
        self.settings = fleet.settings
        self.pipelines = pipelines
        self.engine = Engine(fleet, pipelines, clock=clock)
        self.in_flight: InFlightWriter | None = None
        """Who holds room for VMs that were sent somewhere; nobody without a store."""
        self.tracker: PlacementTracker | None = None
        """Who keeps account of commitments."""
        self.history: HistoryWriter | None = None
        """Who keeps what was answered; nobody without a store."""
        self._clock = clock
        self._random = random
        self._lists = HostLists()
        self._figures = PlacementMetrics(self.settings, metrics)
        self._durations = (
            metrics.add_histogram("scheduler_api_request_duration_seconds", "Time of a scheduler call", _API_LABELS)
            if metrics is not None
            else None
        )

    # -- what is known ---------------------------------------------------------------------------------

    def watch(
        self,
        *,
        hypervisors: Informer[Hypervisor],
        reservations: Informer[Reservation],
        pipelines: Informer[Pipeline],
        commitments: Informer[CommittedResource] | None = None,
        quotas: Informer[ProjectQuota] | None = None,
        knowledge: Informer[Knowledge] | None = None,
    ) -> None:
        """Follow these informers from now on, what they hold included."""
        if commitments is not None:
            commitments.subscribe(self.on_commitment)
        if quotas is not None:
            quotas.subscribe(self.on_quota)
        if knowledge is not None:
            knowledge.subscribe(self.on_knowledge)
        hypervisors.subscribe(self.on_hypervisor)
        reservations.subscribe(self.on_reservation)
        pipelines.subscribe(self.on_pipeline)

    def on_hypervisor(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        """A host appeared, changed or went."""
        if new is not None:
            self.fleet.upsert_host(new)
        elif old is not None:
            self.fleet.remove_host(old.name)

    def on_reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        """A reservation appeared, changed or went."""
        if new is not None:
            self.fleet.upsert_reservation(new)
        elif old is not None:
            self.fleet.remove_reservation(old.name)

    def on_commitment(self, old: CommittedResource | None, new: CommittedResource | None) -> None:
        """A commitment appeared, changed or went."""
        if new is not None:
            self.fleet.domains.learn(new.spec.domain_id, project=new.spec.project_id)
            self.fleet.quotas.upsert_commitment(new)
        elif old is not None:
            self.fleet.quotas.remove_commitment(old.name)

    def on_quota(self, old: ProjectQuota | None, new: ProjectQuota | None) -> None:
        """A project's quota appeared, changed or went."""
        if new is not None:
            spec = new.spec
            self.fleet.domains.learn(spec.domain_id, name=spec.domain_name, project=spec.project_id)
            self.fleet.quotas.upsert_quota(new)
        elif old is not None:
            self.fleet.quotas.remove_quota(old.name)

    def on_knowledge(self, old: Knowledge | None, new: Knowledge | None) -> None:
        """Records appeared, changed or went; where some can be used that could not, or vice versa, so do steps."""
        records = self.fleet.records
        turned = records.upsert(new) if new is not None else old is not None and records.remove(old.name)
        if turned:
            self.pipelines.rebuild()

    def on_pipeline(self, old: Pipeline | None, new: Pipeline | None) -> None:
        """A pipeline appeared, changed or went; calls in progress keep theirs."""
        if new is not None:
            if old is None or old.spec != new.spec:
                self.pipelines.put(new)
        elif old is not None:
            self.pipelines.remove(old.name)

    # -- questions -------------------------------------------------------------------------------------

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        """The hosts for a request, best first; ``RunRefused`` when it cannot be answered as a whole."""
        ranking = self._rank_counted(request, why=why)
        self._conclude(ranking)
        return ranking

    def _rank_counted(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        """The ranking, counted; a refusal is kept in the history."""
        try:
            ranking = self.engine.rank(request, why=why)
        except RunRefused as error:
            if self.history is not None:
                self.history.record_refusal(request, error)
            raise
        self._figures.observe(ranking)
        return ranking

    def _conclude(self, ranking: Ranking, order: Sequence[str] = ()) -> None:
        """What follows from an answer, in the same turn: nobody asks in between. ``order``: the hosts, if permuted."""
        request = ranking.run.request
        if request.options.read_only:
            return
        if not request.options.skip_committed_resource_tracking:
            outcome: TrackingOutcome | None
            if self.tracker is None or not self.settings.committed_resource_tracking:
                group = request.group_name(self.settings.flavor_group_keys)
                outcome = TrackingOutcome(group, UNTRACKED) if group else None
            else:
                try:
                    outcome = self.tracker.track(ranking, order or ranking.hosts)
                except Exception:  # noqa: BLE001 - the caller's VM has its host already, so the answer stays
                    _log.exception("placement.not_tracked", vm=request.resource_id)
                    outcome = FAILED
            if outcome is not None:
                self._figures.count_outcome(ranking, outcome)
        if self.history is not None:
            self.history.record(ranking, tuple(order))
        if self.in_flight is not None and len(ranking):
            most = self.settings.in_flight_hosts or len(ranking)
            self.in_flight.hold(request, order[:most] if order else ranking.names_at(ranking.order[:most]))

    async def answer_external(self, body: bytes) -> ExternalAnswer:
        """Answer Nova's call; never raises for what is in the body."""
        started = self._clock.monotonic()
        try:
            request = decode_request(body, self._lists)
            with request_context(greq=request.global_request_id, req=request.request_id):
                ranking = self._rank_counted(request)
                shuffled_hosts = self._shuffle_hosts(ranking)
                self._conclude(ranking, shuffled_hosts)
                target = shuffled_hosts[0] if shuffled_hosts else ranking.target or ""
                self._log_answer(request, target, len(ranking))
                if renamed := request.renamed_hosts:
                    names = [renamed.get(name, name) for name in shuffled_hosts or ranking.hosts]
                    hosts = msgspec.json.encode(names)
                else:
                    hosts = msgspec.json.encode(shuffled_hosts) if shuffled_hosts else ranking.json_hosts()
                result = answer(ranking, hosts)
        except OutliveError as error:
            _log.warning("placement.call_refused", code=error.code, error=str(error))
            result = render_refusal(error)
        if self._durations is not None:
            taken = self._clock.monotonic() - started
            self._durations.labels("POST", API_PATH, str(result.status), result.code).observe(taken)
        return result

    async def explain(self, body: bytes) -> ExternalAnswer:
        """The same question without any effect, answered with every step's figures and a reason per refused host."""
        try:
            asked = decode_request(body)
            options = msgspec.structs.replace(
                asked.options,
                read_only=True,
                skip_history=SILENT.skip_history,
                skip_inflight=SILENT.skip_inflight,
                skip_committed_resource_tracking=SILENT.skip_committed_resource_tracking,
            )
            ranking = await self.rank(msgspec.structs.replace(asked, options=options), why=True)
        except OutliveError as error:
            return render_refusal(error)
        return ExternalAnswer(status=200, body=msgspec.json.encode(ranking.to_document()))

    def _log_answer(self, request: PlacementRequest, target: str, hosts: int) -> None:
        """One event a call; that of an evacuation names the slot that its first host consumes."""
        fields = {
            "vm": request.resource_id,
            "user": request.user,
            "project": request.project,
            "pipeline": request.pipeline,
            "intent": request.intent.value,
        }
        if request.intent is not Intent.EVACUATE:
            _log.debug("placement.answered", target=target, hosts=hosts, **fields)
            return
        slots = slots_of_vm_on(self.fleet, request.resource_id, target)
        _log.info("placement.answered", target=target, hosts=hosts, slots=slots, **fields)

    def _shuffle_hosts(self, ranking: Ranking) -> list[str]:
        """The hosts of an evacuation, permuted at the top; empty for every other answer, which is left as it is."""
        request, settings = ranking.run.request, self.settings
        if request.intent is not Intent.EVACUATE or settings.evacuation_shuffle_k < 2:
            return []
        own = {ranking.run.name_at(row) for row in own_slot_rows(self.fleet, request.resource_id)}
        return shuffle_top(
            ranking.hosts,
            own,
            first=settings.evacuation_shuffle_k,
            random=self._random,
        )
