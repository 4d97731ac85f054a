"""What the storage agent counts, for Prometheus (docs/reference/metrics.md#the-storage-agent).

Every series is there from the start, so that the first failure shows as a rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outlive.runtime.metrics import Metrics
from outlive.storage.troubles import CacheState

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
        self._ticks = metrics.counter("ticks_total", "Ticks that were begun")
        self._tick_seconds = metrics.histogram(
            "tick_seconds", "How long a tick takes, with the calls it makes", buckets=TICK_S
        )
        self._polls = metrics.counter("drbd_polls_total", "Polls of DRBD, by how they ended", ("result",))
        self._resources = metrics.gauge(
            "resources", "DRBD resources of this node; one can be suspended and without quorum", ("state",)
        )
        self._pending = metrics.gauge("pending_failovers", "Pairs of resource and lost peer that are not finished")
        self._actions = metrics.counter(
            "actions_total",
            "What was done, by how it ended: refused is a 429, dry-run was not done",
            ("action", "result"),
        )
        self._skipped = metrics.counter(
            "skipped_pods_total", "Pods that were left alone on a lost volume, each tick again", ("reason",)
        )
        self._failover = metrics.histogram(
            "failover_seconds", "From the first sight of a loss to the end of the detach", buckets=FAILOVER_S
        )
        self._brake = metrics.gauge("brake_engaged", "1 while failovers wait because too much is lost at once")
        self._standby = metrics.counter(
            "standby_total", "Failovers that were left to another survivor, at least at first"
        )
        self._streams = metrics.counter(
            "drbd_streams_lost_total", "Events streams of DRBD that ended, or were not understood"
        )
        self._jumps = metrics.counter("clock_jumps_total", "Jumps of the wall clock, after which all timers began anew")
        metrics.register_collector(self._ages)
        metrics.register_collector(self._troubles)
        for outcome in get_args(PollOutcome):
            self._polls.labels(outcome)
        for action in get_args(AgentAction):
            for result in get_args(ActionOutcome):
                self._actions.labels(action, result)
        for reason in get_args(SkipReason):
            self._skipped.labels(reason)
        self.resources({})
        self.pending(0)
        self.brake(engaged=False)

    def tick(self, seconds: float) -> None:
        """Count a tick that took so long."""
        self._ticks.inc()
        self._tick_seconds.observe(seconds)

    def poll(self, result: PollOutcome) -> None:
        """Count a poll of DRBD."""
        self._polls.labels(result).inc()

    def resources(self, counts: Mapping[VolumeState, int]) -> None:
        """Set how many resources are in each state; a state that is not named has none."""
        for state in get_args(VolumeState):
            self._resources.labels(state).set(counts.get(state, 0))

    def pending(self, pairs: int) -> None:
        """Set how many losses are not finished."""
        self._pending.set(pairs)

    def action(self, action: AgentAction, result: ActionOutcome) -> None:
        """Count one thing that was done, or tried."""
        self._actions.labels(action, result).inc()

    def skipped(self, reason: SkipReason) -> None:
        """Count a pod that was left alone in this tick."""
        self._skipped.labels(reason).inc()

    def failover(self, seconds: float) -> None:
        """Count a failover that is finished, so long after its first sight."""
        self._failover.observe(seconds)

    def brake(self, *, engaged: bool) -> None:
        """Set whether failovers wait because too much is lost at once."""
        self._brake.set(engaged)

    def standby(self) -> None:
        """Count a failover that is left to another survivor."""
        self._standby.inc()

    def stream_lost(self) -> None:
        """Count an events stream of DRBD that ended."""
        self._streams.inc()

    def clock_jumped(self) -> None:
        """Count a jump of the wall clock."""
        self._jumps.inc()

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return self._metrics.render()

    def _ages(self) -> Iterator[Metric]:
        age_s = self._snapshot_age_s()
        yield GaugeMetricFamily(
            "drbd_snapshot_age_seconds",
            "Age of the last state of DRBD; infinite before the first",
            value=float("inf") if age_s is None else age_s,
        )

    def _troubles(self) -> Iterator[Metric]:
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
