"""Measures how well this host does, in passing: renewals, writes of the store, its disks, its hypervisor.

Nothing is asked for the sake of measuring but the kernel's own figure of the disks. Samples are kept for a few windows
and no longer; what is published changes only when the level, its causes or what becomes of the virtual machines change,
and the figures go with those that are published every interval anyway. A daemon that is started again goes on from
what was published. ``PeerHealth`` reads how the other hosts do, as they have published it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, as_datetime
from outlive.node.health import (
    BOUNDS,
    FULL,
    SCORE_HOST,
    SINKING_BELOW,
    WAITS,
    HealthPart,
    HealthPeer,
    LeaveVerdict,
    Level,
    PartScore,
    Sample,
    ScoreInput,
    describe_outcome,
    describe_slowness,
    has_common_cause,
    score_host,
    suggest_remedy,
)
from outlive.node.membership.lease import LeaseRenewer, Renewed
from outlive.node.vm.context import VmContext
from outlive.node.vm.domains import LocalDomains
from outlive.resources import (
    Degrading,
    DegradingPolicy,
    Hypervisor,
    HypervisorUsage,
    Membership,
    ObjectRef,
    explain_out_of_service,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultSet
from outlive.store import Store, list_all, read

SAMPLES_KEPT: Final = 512
"""Of each part."""
WINDOW_LEAST_S: Final = 5.0
WINDOW_MOST_S: Final = 600.0
REWRITE_S: Final = 30.0
"""Between two writes of which nothing but the causes differ."""
_LOW: Final = {
    part: bounds.good + (bounds.bad - bounds.good) * (FULL - SINKING_BELOW) / FULL for part, bounds in BOUNDS.items()
}
"""From such a value on a part may degrade, if many are like it."""


class HealthMonitor:
    """See the module."""

    def __init__(self, node: VmContext) -> None:
        self.standing = Level()
        self.together = 1
        """How many hosts have its trouble, as was last looked at."""
        self._node = node
        self._samples: dict[HealthPart, deque[tuple[float, float]]] = {
            part: deque(maxlen=SAMPLES_KEPT) for part in HealthPart
        }
        """When, and how much."""
        self._low_s: float | None = None
        """When something was measured last that was not good."""
        self._parts: dict[HealthPart, PartScore] = {}
        self._leaving: tuple[bool, str] = (False, LeaveVerdict.UNSETTLED)
        self.published: Degrading | None = None
        self._published_s = 0.0
        self._adopted = False

    # Measuring

    def note_renewal(self, how: Renewed) -> None:
        """A renewal has ended: as good a moment as any to read what the kernel says of the disks."""
        self._add(HealthPart.KEEPALIVE, how.took_s / max(how.pace_s, 1e-3))
        if how.swap_s is not None:
            self._add(HealthPart.STORE, how.swap_s)
        stall = self._node.machine.disk_stall()
        if stall is not None:
            self._add(HealthPart.DISK, stall)

    def note_listing(self, took_s: float) -> None:
        """The hypervisor has listed its domains."""
        self._add(HealthPart.HYPERVISOR, took_s)

    def record_storage_check(self, took_s: float) -> None:
        """Count a check whether the storage of the VMs is reached, which took so many seconds."""
        self._add(HealthPart.STORAGE, took_s)

    def _add(self, part: HealthPart, value: float) -> None:
        now = self._node.clock.monotonic()
        self._samples[part].append((now, value))
        if value > _LOW[part]:
            self._low_s = now

    # What others ask

    @property
    def policy(self) -> DegradingPolicy:
        """Of the cluster."""
        return self._node.desired.cluster_spec.degrading

    @property
    def degrading_for_s(self) -> float | None:
        """Since when it degrades; ``None``: it does well."""
        if self.standing.level == "well":
            return None
        return max(0.0, self._node.clock.monotonic() - float(self.standing.since))

    def read_figures(self) -> tuple[dict[str, int], dict[str, float]]:
        """Score and slope of each part that was measured within the window."""
        if self.policy.action == "off":
            return {}, {}
        now = self._node.clock.monotonic()
        parts = score_host(self._score_input(now)).parts
        slopes = {} if self._is_calm(now) else {part.value: one.slope for part, one in parts.items() if one.slope}
        return {part.value: one.score for part, one in parts.items()}, slopes

    # Looking

    async def evaluate(self) -> bool:
        """Score the host, report a fault; whether what is published changes."""
        if self.policy.action == "off":
            self.standing, self._parts = Level(), {}
        else:
            self._adopt()
            now_s = self._node.clock.monotonic()
            if self.standing.level != "well" or not self._is_calm(now_s):
                result = self._node.decisions.use(SCORE_HOST, self._score_input(now_s), subject=self._node.host)
                if result.standing.level != self.standing.level:
                    self._leaving = (False, LeaveVerdict.UNSETTLED)
                self.standing, self._parts = result.standing, result.parts
        changed = self._publish()
        subject, now = ObjectRef(kind="Hypervisor", name=self._node.host), self.published
        if now is None:
            self._node.faults.clear(FaultCode.HOST_DEGRADING, subject)
            return changed
        self._node.faults.activate(
            FaultCode.HOST_DEGRADING,
            subject,
            causes=describe_slowness(now.causes),
            vms=describe_outcome(now),
            remedy=suggest_remedy(self._node.host, now, together=self.together),
        )
        return changed

    def leave(self, *, go: bool, why: str = "") -> bool:
        """What becomes of the virtual machines; whether that changes what is published."""
        self._leaving = (go, why)
        return self._publish()

    def _adopt(self) -> None:
        """Go on from what the daemon before this one has published."""
        found = self._node.desired.hypervisor
        if self._adopted or found is None:
            return
        self._adopted = True
        published = found.status.degrading
        if published is not None and self.standing.level == "well":
            now = self._node.clock.monotonic()
            causes = tuple(HealthPart(one) for one in published.causes if one in set(HealthPart))
            self.standing = Level(level="degrading", since=now, bad_at=now, causes=causes)
            self.published = published

    def _is_calm(self, now: float) -> bool:
        """Whether nothing was measured over the window of which a host could degrade."""
        return self._low_s is None or now - self._low_s >= self._window_s

    def _score_input(self, now: float) -> ScoreInput:
        window_s = self._window_s
        return ScoreInput(
            now=now,
            window=window_s,
            quiet=max(self.policy.quiet_s, window_s),
            samples={
                part: tuple(Sample(at, max(0.0, value)) for at, value in kept if at > now - window_s)
                for part, kept in self._samples.items()
                if kept
            },
            before=self.standing,
        )

    @property
    def _window_s(self) -> float:
        return min(max(self.policy.window_s, WINDOW_LEAST_S), WINDOW_MOST_S)

    # Publishing

    def _publish(self) -> bool:
        before = self.published
        if self.standing.level == "well":
            self.published = None
            return before is not None
        now = self._node.clock.monotonic()
        go, why = self._leaving
        leaving = ("leaves" if go else "waits" if why in WAITS else "stays", "" if go else str(why))
        causes = tuple(part.value for part in self.standing.causes)
        same = before is not None and (before.leaving, before.why) == leaving
        if same and before is not None and (before.causes == causes or now - self._published_s < REWRITE_S):
            return False
        scores = [self._parts[part].score for part in self.standing.causes if part in self._parts]
        self._published_s = now
        self.published = Degrading(
            since=before.since if before is not None else as_datetime(self._node.clock.now()),
            causes=causes,
            score=min(scores, default=0),
            leaving=leaving[0],  # type: ignore[arg-type]
            why=leaving[1],
        )
        return True


PAGE: Final = 100
"""Hosts that are read at once."""
PAGES_LIMIT: Final = 200
ENOUGH: Final = 8
"""Hosts of one page that say something about all of them."""
FRESH_S: Final = 60.0
"""What a host has said of storage counts for so long after its figures were seen to change."""
AHEAD_LIMIT: Final = 16
"""Hosts in line of which it is looked up whether they live."""


class PeerHealth:
    """The other hosts. Where the store is slow for everybody, everybody asks: so a page is read first, and no more if
    that page alone shows a common cause. What is read is as old as the others' last writes.
    """

    def __init__(self, store: Store, host: str, clock: Clock) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}
        """Host → version of its figures, and when that was first seen to follow another one."""

    async def list_peers(self, common_share: float) -> tuple[HealthPeer, ...]:
        """The hosts with our daemon but this one; those of the first page, without figures, if so many degrade."""
        found: list[HealthPeer] = []
        token = ""
        for _ in range(PAGES_LIMIT):
            page = await self._store.list(Hypervisor, limit=PAGE, token=token)
            found += [_peer_of(one) for one in page.items if one.name != self._host and one.spec.management == "node"]
            token = page.token
            if not token:
                break
            together = 1 + sum(one.degrading for one in found)
            if len(found) >= ENOUGH and has_common_cause(together, len(found) + 1, common_share):
                return tuple(found)
        figures = {one.name: one async for one in list_all(self._store, HypervisorUsage)}
        self._written = {name: self._first_seen(one) for name, one in figures.items()}
        oldest_s = self._clock.monotonic() - FRESH_S
        return tuple(
            msgspec.structs.replace(
                peer,
                scores=figures[peer.name].usage.scores,
                reaches=figures[peer.name].usage.reached if self._written[peer.name][1] >= oldest_s else (),
            )
            if peer.name in figures
            else peer
            for peer in found
        )

    async def filter_living(self, peers: tuple[HealthPeer, ...]) -> tuple[HealthPeer, ...]:
        """Without hosts that were left, or were to be, when they died: they keep nobody waiting."""
        ahead = [one.name for one in peers if one.works and one.leaving in ("waits", "leaves")][:AHEAD_LIMIT]
        gone = [name for name in ahead if not await self._is_alive(name)]
        return tuple(one for one in peers if one.name not in gone)

    async def _is_alive(self, host: str) -> bool:
        found = await read(self._store, Membership, host)
        return found is not None and found.record.state == "Held"

    def _first_seen(self, figures: HypervisorUsage) -> tuple[str, float]:
        """Its version, and when that was first seen; of figures that were never seen to change nobody knows when."""
        version, before = figures.metadata.resource_version, self._written.get(figures.name)
        if before is None:
            return version, float("-inf")
        return before if before[0] == version else (version, self._clock.monotonic())


def _peer_of(host: Hypervisor) -> HealthPeer:
    degrading = host.status.degrading
    return HealthPeer(
        name=host.name,
        works=not explain_out_of_service(host),
        degrading=degrading is not None,
        causes=()
        if degrading is None
        else tuple(HealthPart(one) for one in degrading.causes if one in set(HealthPart)),
        leaving="" if degrading is None else degrading.leaving,
        storage_lost=host.status.storage_lost is not None,
        coordinator=host.spec.mode == "coordinator",
    )


# Metrics of one daemon: its membership, its guard, the domains of its host, and the faults that it finds.

CODES: Final = 100
"""Codes of faults that are told apart."""


class DaemonGauges:
    """See the module; worked out at each scrape, without asking anybody."""

    def __init__(self, lease: LeaseRenewer, domains: LocalDomains, faults: FaultSet, clock: Clock) -> None:
        self._lease = lease
        self._domains = domains
        self._faults = faults
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Names are without the prefix."""
        lease, age_s = self._lease, self._lease.own_age_s
        held = GaugeMetricFamily("node_member", "1 while this host holds its membership")
        held.add_metric([], float(lease.held))
        epoch = GaugeMetricFamily("node_epoch", "The epoch of this host's membership")
        epoch.add_metric([], float(lease.me.epoch))
        renewed = GaugeMetricFamily(
            "node_renewed_timestamp_seconds",
            "When the last renewal was sent that the store acknowledged, seconds since 1970",
        )
        if math.isfinite(age_s):
            renewed.add_metric([], self._clock.now() - age_s)
        armed = GaugeMetricFamily("node_guard_armed", "1 while fencers may count on the guard of this host")
        armed.add_metric([], float(lease.counts_as_armed))
        domains = GaugeMetricFamily("node_domains", "Domains that the daemon last saw, by state", labels=["state"])
        for state, count in sorted(Counter(str(one.state) for one in self._domains.list_present()).items()):
            domains.add_metric([state], count)
        faults = GaugeMetricFamily("node_faults", "Faults that this daemon finds", labels=["code", "severity"])
        found = Counter((str(one.code), str(one.code.severity)) for one in self._faults.active)
        for labels, count in sorted(found.items())[:CODES]:
            faults.add_metric(list(labels), count)
        return [held, epoch, renewed, armed, domains, faults]
