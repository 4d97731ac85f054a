"""How the storage agent does: what it counts, what troubles it, and what ``/healthz`` answers.

Every series is there from the start, so that the first failure shows as a rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Literal, NamedTuple, get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outlive.base import Forbidden, OutliveError
from outlive.runtime import Decision, Metrics
from outlive.storage.options import AgentOptions, Profile

# What keeps the agent from knowing something, or from doing it: in words, for explanations and the log.
#
# A trouble never is a reason to act. What the API server refuses is named with the server's own words, which have the
# verb and the resource of a right that is missing (docs/how-to/storage-agent.md#troubles).

STALLED_S: Final = 10.0
"""A cache may be in doubt so long, as at its start and whenever a watch begins anew."""
RIGHTS_REMEDY: Final = "apply deploy/kubernetes/storage-agent/account.yaml"
MALFORMED_NAMED: Final = 3
"""Objects that are not understood, of which explanations of others say why."""


class CacheState(NamedTuple):
    """How well the agent knows one kind."""

    plural: str
    filled: bool
    """Whether it was listed once."""
    stalled_s: float
    """For how long it is in doubt; 0: it follows."""
    error: OutliveError | None
    """Why it was lost the last time, until it is listed again."""
    malformed: int
    """Objects that are not understood."""


class ApiFailure(NamedTuple):
    """A kind of request that failed when it was tried last."""

    verb: str
    place: str
    error: OutliveError


def describe_troubles(caches: Sequence[CacheState], failures: Iterable[ApiFailure]) -> tuple[str, ...]:
    """A sentence for each cache that does not follow, then one for each other kind of request that fails."""
    found: list[str] = []
    for one in caches:
        if one.error is not None and isinstance(one.error, Forbidden):
            found.append(f"{one.plural} cannot be listed and watched: {_error_reason(one.error)}")
        elif one.stalled_s > STALLED_S:
            why = f": {_error_reason(one.error)}" if one.error is not None else ""
            known = "what is known of them is old" if one.filled else "nothing is known of them, and nothing is done"
            found.append(f"{one.plural} are not followed, {known}{why}")
    seen = {one.error.message for one in caches if one.error is not None}
    for failure in failures:
        if failure.error.message not in seen:
            seen.add(failure.error.message)
            found.append(f"{failure.verb} {failure.place} fails: {_error_reason(failure.error)}")
    return tuple(found)


def _error_reason(error: OutliveError) -> str:
    remedy = RIGHTS_REMEDY if isinstance(error, Forbidden) else error.remedy
    return f"{error.message} ({remedy})" if remedy else error.message


PREFIX: Final = "storage_ha_"
PollOutcome = Literal["ok", "command-failed", "timed-out", "bad-document"]
VolumeState = Literal["quorum", "no-quorum", "suspended", "failing-io"]
AgentAction = Literal["taint", "untaint", "evict", "delete", "detach", "demote"]
ActionOutcome = Literal["ok", "refused", "failed", "dry-run"]
"""``refused``: a disruption budget or a webhook says not now (429)."""
SkipReason = Literal["unowned", "annotation", "unsafe", "read-only", "budget"]
TICK_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FAILOVER_S: Final = (1.0, 2.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 300.0, 600.0)


class AgentMetrics:
    """The metrics of one agent. ``snapshot_age_s`` gives the age of what DRBD said last, ``None`` before the first.

    ``caches`` and ``refusals`` are where it reads how well each kind is known, and how often requests failed, by verb
    and code.
    """

    caches: Callable[[], Iterable[CacheState]] = tuple
    refusals: Callable[[], Mapping[tuple[str, str], int]] = dict

    def __init__(self, snapshot_age_s: Callable[[], float | None]) -> None:
        self._metrics = metrics = Metrics(PREFIX)
        self._snapshot_age_s = snapshot_age_s
        self._ticks = metrics.add_counter("ticks_total", "Ticks that were begun")
        self._tick_seconds = metrics.add_histogram(
            "tick_seconds", "How long a tick takes, with the calls it makes", buckets=TICK_S
        )
        self._polls = metrics.add_counter("drbd_polls_total", "Polls of DRBD, by how they ended", ("result",))
        self._resources = metrics.add_gauge(
            "resources", "DRBD resources of this node; one can be suspended and without quorum", ("state",)
        )
        self._pending = metrics.add_gauge("pending_failovers", "Pairs of resource and lost peer that are not finished")
        self._actions = metrics.add_counter(
            "actions_total",
            "What was done, by how it ended: refused is a 429, dry-run was not done",
            ("action", "result"),
        )
        self._skipped = metrics.add_counter(
            "skipped_pods_total", "Pods that were left alone on a lost volume, each tick again", ("reason",)
        )
        self._failover = metrics.add_histogram(
            "failover_seconds", "From the first sight of a loss to the end of the detach", buckets=FAILOVER_S
        )
        self._brake = metrics.add_gauge("brake_engaged", "1 while failovers wait because too much is lost at once")
        self._standby = metrics.add_counter(
            "standby_total", "Failovers that were left to another survivor, at least at first"
        )
        self._streams = metrics.add_counter(
            "drbd_streams_lost_total", "Events streams of DRBD that ended, or were not understood"
        )
        self._jumps = metrics.add_counter(
            "clock_jumps_total", "Jumps of the wall clock, after which all timers began anew"
        )
        metrics.register_collector(self._collect_ages)
        metrics.register_collector(self._collect_troubles)
        for outcome in get_args(PollOutcome):
            self._polls.labels(outcome)
        for action in get_args(AgentAction):
            for result in get_args(ActionOutcome):
                self._actions.labels(action, result)
        for reason in get_args(SkipReason):
            self._skipped.labels(reason)
        self.set_resources({})
        self.set_pending(0)
        self.set_brake(engaged=False)

    def observe_tick(self, seconds: float) -> None:
        """Count a tick that took so long."""
        self._ticks.inc()
        self._tick_seconds.observe(seconds)

    def poll(self, result: PollOutcome) -> None:
        """Count a poll of DRBD."""
        self._polls.labels(result).inc()

    def set_resources(self, counts: Mapping[VolumeState, int]) -> None:
        """Set how many resources are in each state; a state that is not named has none."""
        for state in get_args(VolumeState):
            self._resources.labels(state).set(counts.get(state, 0))

    def set_pending(self, pairs: int) -> None:
        """Set how many losses are not finished."""
        self._pending.set(pairs)

    def count_action(self, action: AgentAction, result: ActionOutcome) -> None:
        """Count one thing that was done, or tried."""
        self._actions.labels(action, result).inc()

    def count_skipped(self, reason: SkipReason) -> None:
        """Count a pod that was left alone in this tick."""
        self._skipped.labels(reason).inc()

    def observe_failover(self, seconds: float) -> None:
        """Count a failover that is finished, so long after its first sight."""
        self._failover.observe(seconds)

    def set_brake(self, *, engaged: bool) -> None:
        """Set whether failovers wait because too much is lost at once."""
        self._brake.set(engaged)

    def count_standby(self) -> None:
        """Count a failover that is left to another survivor."""
        self._standby.inc()

    def count_lost_stream(self) -> None:
        """Count an events stream of DRBD that ended."""
        self._streams.inc()

    def count_clock_jump(self) -> None:
        """Count a jump of the wall clock."""
        self._jumps.inc()

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return self._metrics.render()

    def _collect_ages(self) -> Iterator[Metric]:
        age_s = self._snapshot_age_s()
        yield GaugeMetricFamily(
            "drbd_snapshot_age_seconds",
            "Age of the last state of DRBD; infinite before the first",
            value=float("inf") if age_s is None else age_s,
        )

    def _collect_troubles(self) -> Iterator[Metric]:
        stalled = GaugeMetricFamily(
            "cache_stalled_seconds", "For how long a kind is not followed; 0: it is", labels=["kind"]
        )
        malformed = GaugeMetricFamily("malformed_objects", "Objects that are not understood", labels=["kind"])
        for one in self.caches():
            stalled.add_metric([one.plural], one.stalled_s)
            malformed.add_metric([one.plural], one.malformed)
        refused = CounterMetricFamily(
            "api_refusals", "Requests that the API server refused or did not answer", labels=["verb", "code"]
        )
        for labels, times in sorted(self.refusals().items()):
            refused.add_metric(list(labels), times)
        yield from (stalled, malformed, refused)


# What ``/healthz`` of the storage agent answers, by which Kubernetes starts a process that hangs anew.


class HealthInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the process knows about itself; ages in seconds."""

    profile: Profile = "hardened"
    options: AgentOptions = msgspec.field(default_factory=AgentOptions)
    since_tick_s: float | None = None
    """Since the last tick began; absent: none has."""
    caches_filled: bool = False
    own_node_known: bool = False
    """Whether a Kubernetes node of the own name exists."""
    snapshot_age_s: float | None = None
    """Age of the last state of DRBD; absent: there is none."""


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer of HTTP."""

    status: int
    code: Literal["ok", "late", "caches", "node-missing", "stale"]
    body: str


def check_health(given: HealthInput) -> HealthAnswer:
    """The first check that fails: ticks, caches, own node, and unless ``compat`` the age of what DRBD says."""
    options, tick_s, age_s = given.options, given.since_tick_s, given.snapshot_age_s
    if tick_s is None or tick_s > options.deadline_s + options.reconcile_interval_s:
        shown = "infinite " if tick_s is None else f"{tick_s:.1f}"
        return _unhealthy_answer("late", f"too long since last update: {shown}s")
    if not given.caches_filled:
        return _unhealthy_answer("caches", "informers not synced")
    if not given.own_node_known:
        return _unhealthy_answer(
            "node-missing", f"no Kubernetes node is called {options.node_name!r}: check --node-name"
        )
    if given.profile == "hardened" and (age_s is None or age_s > options.drbd_stale_after_s):
        shown = "there is none yet" if age_s is None else f"it is {age_s:.1f}s old"
        return _unhealthy_answer("stale", f"no recent state of DRBD: {shown}; does drbdsetup hang or fail?")
    return HealthAnswer(status=HTTPStatus.OK, code="ok", body="ok")


def _unhealthy_answer(code: Literal["late", "caches", "node-missing", "stale"], body: str) -> HealthAnswer:
    return HealthAnswer(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=code, body=body)


HEALTH: Final = Decision(
    "storage.health",
    check_health,
    HealthInput,
    HealthAnswer,
    "Whether the storage agent does its work",
    nulls_are_absent=True,
)
