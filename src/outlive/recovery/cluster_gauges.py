"""Metrics of the whole cluster as it is now: hosts and VMs by state, faults, health, fences, guards, BMCs.

They are the same facts that ``outlive status`` prints (``node.liveness``, ``recovery.cluster_health``), worked out
every few seconds by every process that watches, a few objects at a time; a scrape shows the last ones, and
``cluster_observed_timestamp_seconds`` when that was (docs/how-to/observing.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, Instant, as_instant
from outlive.node import ClusterLiveness, HostLife, HostLiveness, VmLife
from outlive.node.fencing import IN_DATE_S, OK, HostSettings, profile_of
from outlive.recovery.cluster_health import HealthIssue, count_issues, is_provable, judge_health
from outlive.recovery.informers import RecoveryInformers
from outlive.resources import CLUSTER, Cluster, Fault, Hypervisor, Membership
from outlive.resources.reasons import FaultCode, Severity, severity_of
from outlive.runtime import Informer, Periodic

EVERY_S: Final = 5.0
"""How often they are worked out, where that takes little."""
RESTS: Final = 9.0
"""So many times as long as counting took nothing is counted: with 100,000 VMs it takes seconds of one core."""
TURN: Final = 200
"""Objects that are counted before others get their turn."""
CODES: Final = 500
"""Codes and reasons that one metric tells apart; what is beyond is counted as ``other``."""
FENCES: Final = 100
"""Hosts whose fences without proof are named, the oldest first."""


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """What was counted at one moment."""

    at: Instant
    hosts: Mapping[HostLife, int]
    unwatched: int
    """Hosts that others manage, and that are in no state here."""
    vms: Mapping[VmLife, int]
    waiting: Mapping[str, tuple[int, Instant | None]]
    """Reason → how many VMs wait for it, and since when the first one does, where that is known."""
    faults: Mapping[tuple[str, str, bool], int]
    """Code, severity and whether it was acknowledged → active faults."""
    health: int
    issues: Mapping[HealthIssue, int]
    unproven: Mapping[str, Instant]
    """Hosts that are condemned and not proven dead → since when that is recorded, else since now."""
    coordinators: int
    coordinators_alive: int
    guards_missing: int
    """Hosts that are alive and whose guard is to be armed and is not."""
    rehearsals: Mapping[str, int]
    """``ok``, ``failing``, ``never``, ``old`` → living hosts with a BMC."""
    unprovable: int
    wrote_at: Instant | None


class ClusterGauges:
    """See the module. ``run`` until cancelled; ``collect`` gives the last figures, and nothing before the first."""

    def __init__(
        self,
        informers: RecoveryInformers,
        faults: Informer[Fault],
        *,
        life: Callable[[], ClusterLiveness],
        own_faults: Callable[[], Iterable[Fault]],
        uncovered: Callable[[], int],
        wrote_at: Callable[[], Instant | None],
        clock: Clock,
    ) -> None:
        self._informers = informers
        self._faults = faults
        self._life = life
        self._own_faults = own_faults
        self._uncovered = uncovered
        self._wrote_at = wrote_at
        self._clock = clock
        self._last: ClusterFigures | None = None
        self._unproven: dict[str, Instant] = {}

    async def run(self) -> None:
        """Count, for ever."""
        await Periodic(self._count_again, EVERY_S, clock=self._clock).run()

    async def _count_again(self) -> float:
        began_s = self._clock.monotonic()
        self._last = await self.count()
        took_s = self._clock.monotonic() - began_s
        return max(EVERY_S, RESTS * took_s)

    async def count(self) -> ClusterFigures:
        """The figures of now."""
        now, life, informers = self._clock.now(), self._life(), self._informers
        cluster = informers.clusters.get(CLUSTER)
        lives = dict[str, HostLiveness]()
        hosts = informers.hypervisors.items()
        members = {one.name: one for one in informers.memberships.items()}
        for number, host in enumerate(hosts, 1):
            lives[host.name] = life.liveness_of_host(host.name)
            await self._pause(number)
        states, waiting = Counter[VmLife](), dict[str, tuple[int, Instant | None]]()
        for number, vm in enumerate(informers.vms.items(), 1):
            found = life.liveness_of_vm(vm)
            states[found.state] += 1
            if found.state in (VmLife.WAITING, VmLife.DOWN):
                reason = found.reason or str(found.state)
                count, first = waiting.get(reason, (0, None))
                since = as_instant(found.since) if found.since is not None else None
                both = [one for one in (first, since) if one is not None]
                waiting[reason] = (count + 1, min(both, default=None))
            await self._pause(number)
        active = [one for one in (*self._own_faults(), *self._faults.items()) if not one.ended]
        alive = [one for one in hosts if lives[one.name].state is HostLife.ALIVE]
        provable = [is_provable(one, members[one.name], cluster, now) for one in alive if one.name in members]
        wrote_at = self._wrote_at()
        issues = count_issues(
            lives.values(),
            states.elements(),
            uncovered=self._uncovered(),
            unprovable=provable.count(False),
            still_s=now - wrote_at if wrote_at is not None else 0.0,
        )
        watched = [one for one in lives.values() if one.watched]
        coordinators = [one for one in hosts if one.spec.mode == "coordinator" and one.name in members]
        return ClusterFigures(
            at=now,
            hosts=Counter(one.state for one in watched),
            unwatched=len(lives) - len(watched),
            vms=states,
            waiting=waiting,
            faults=Counter(fault_labels(one) for one in active),
            health=judge_health(active, issues).health,
            issues=issues,
            unproven=self._find_unproven(members, active, now),
            coordinators=len(coordinators),
            coordinators_alive=sum(lives[one.name].state is HostLife.ALIVE for one in coordinators),
            guards_missing=sum(
                one.spec.fencing.armed and not members[one.name].record.guard.armed
                for one in alive
                if one.name in members
            ),
            rehearsals=Counter(
                rehearsal_of(one, members.get(one.name), cluster)
                for one in alive
                if one.spec.fencing.driver not in ("", "none")
            ),
            unprovable=provable.count(False),
            wrote_at=wrote_at,
        )

    async def _pause(self, number: int) -> None:
        if number % TURN == 0:
            await self._clock.sleep(0)

    def _find_unproven(
        self, members: Mapping[str, Membership], active: Iterable[Fault], now: Instant
    ) -> dict[str, Instant]:
        """Since when: as the fault of it says, else since this process first saw it."""
        code = FaultCode.FENCE_UNCONFIRMED
        noted = {one.subject.name: as_instant(one.first_seen) for one in active if one.code == code}
        records = {name: one.record for name, one in members.items()}
        names = [name for name, one in records.items() if one.state == "Revoked" and one.dead_through < one.epoch]
        self._unproven = {name: noted.get(name, self._unproven.get(name, now)) for name in names}
        return self._unproven

    def collect(self) -> Iterable[Metric]:
        """All of it as metrics, without the prefix."""
        last = self._last
        return () if last is None else cluster_metrics(last)


def fault_labels(fault: Fault) -> tuple[str, str, bool]:
    """Code, severity, and whether somebody has acknowledged it; a code that this version does not know is ``other``."""
    code = fault.code if fault.code in FaultCode.__members__.values() else "other"
    return code, severity_of(fault.code), fault.acknowledged


def rehearsal_of(host: Hypervisor, member: Membership | None, cluster: Cluster | None) -> str:
    """How the last rehearsal of its BMC went. It is old once so many renewals have followed it that it counts no more:
    a good one is written again before that."""
    said = host.status.rehearsed
    if said != OK:
        return "failing" if said else "never"
    settings, seq = HostSettings(cluster, host), host.status.rehearsed_seq
    if member is None or seq == 0:
        return "ok"
    profile = profile_of(settings.cluster_spec.fencing, settings.fencing, armed=member.record.guard.armed)
    return "old" if (member.record.seq - seq) * profile.renew_s > IN_DATE_S else "ok"


def cluster_metrics(figures: ClusterFigures) -> list[Metric]:
    """The figures as metrics, without the prefix."""
    named = sorted(figures.unproven.items(), key=lambda one: (one[1], one[0]))[:FENCES]
    waiting = sorted(figures.waiting.items())[:CODES]
    oldest = [((reason,), since) for reason, (_, since) in waiting if since is not None]
    simple: list[tuple[str, str, float | None]] = [
        ("cluster_observed_timestamp_seconds", "When these figures were worked out, seconds since 1970", figures.at),
        ("health", "Health of the cluster: 100 is well, see outlive status", figures.health),
        ("fences_unproven", "Hosts that are condemned and not proven dead", len(figures.unproven)),
        ("hosts_unwatched", "Hosts that another system manages, and that Outlive does not watch", figures.unwatched),
        ("hosts_unprovable", "Living hosts that could not be proven dead if they died now", figures.unprovable),
        ("coordinators", "Coordinators that have joined", figures.coordinators),
        ("coordinators_alive", "Coordinators that are alive", figures.coordinators_alive),
        ("guards_not_armed", "Living hosts whose guard is to be armed and is not", figures.guards_missing),
        ("store_written_timestamp_seconds", "Last write to the store, seconds since 1970", figures.wrote_at),
    ]
    return [
        *(_build_gauge(name, text, (), [((), value)] if value is not None else []) for name, text, value in simple),
        _build_gauge("hosts", "Hosts by state", ("state",), [((one,), figures.hosts.get(one, 0)) for one in HostLife]),
        _build_gauge("vms", "VMs by state", ("state",), [((one,), figures.vms.get(one, 0)) for one in VmLife]),
        _build_gauge(
            "vms_waiting",
            "VMs that are wanted and wait or are down, by reason",
            ("reason",),
            [((reason,), count) for reason, (count, _) in waiting],
        ),
        _build_gauge(
            "vms_waiting_since_timestamp_seconds",
            "Since when the first of the VMs waits that wait for this reason, seconds since 1970, where it is known",
            ("reason",),
            oldest,
        ),
        _build_gauge(
            "faults",
            "Faults that are active",
            ("code", "severity", "acknowledged"),
            [((c, s, str(a).lower()), n) for (c, s, a), n in sorted(_all_severities(figures.faults).items())],
        ),
        _build_gauge(
            "health_issues",
            "What lowers the health besides faults",
            ("issue",),
            [((one,), figures.issues.get(one, 0)) for one in HealthIssue],
        ),
        _build_gauge(
            "fence_unproven_since_timestamp_seconds",
            "Since when a host is condemned and not proven dead, seconds since 1970",
            ("host",),
            [((host,), since) for host, since in named],
        ),
        _build_gauge(
            "bmc_rehearsals",
            "Living hosts with a BMC, by how its last rehearsal went: ok, failing, never, or old",
            ("result",),
            [((one,), figures.rehearsals.get(one, 0)) for one in ("ok", "failing", "never", "old")],
        ),
    ]


def _all_severities(faults: Mapping[tuple[str, str, bool], int]) -> dict[tuple[str, str, bool], int]:
    """With a zero for each severity of which there is none, so that the metric is never absent."""
    return {**{("none", str(one), False): 0 for one in Severity}, **faults}


def _build_gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[Any, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric([str(one) for one in values], value)
    return family
