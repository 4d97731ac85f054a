"""Rules under which a silent host is left alone: they keep healthy hosts running when it is the fencer that errs.

Here is gathered what the decision ``fence.evaluate`` looks at: how fresh the observer itself is, how long it has
followed the store without a gap, maintenance, hosts that start or stop, and how much is silent at once. The rate of
fences is counted here too. Nothing of this is needed for safety, and nothing of it proves anything
(docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from outlive.base.clock import Clock
from outlive.node.fencing.evaluate import EvaluateConfig, EvaluateInput, EvaluateResult, Peer
from outlive.node.fencing.evaluate import Observer as ObserverView
from outlive.node.fencing.profile import Profile, profile_of
from outlive.node.fencing.rate import RateRule
from outlive.node.fencing.watching import Seen, Watching, is_open
from outlive.resources import Cluster, ClusterSpec, FencingSpec, Hypervisor, MemberRecord
from outlive.resources.maintenance import cluster_maintenance, host_maintenance, maintenance
from outlive.resources.meta import DOMAIN_LABEL_PREFIX, condition
from outlive.runtime.informer import Informer

DAEMON_CONDITION: Final = "Ready"
"""Condition of a Hypervisor by which its daemon says, as the reason, that it starts or stops."""
STARTING: Final = "Starting"
STOPPING: Final = "Stopping"
BLIND_INTERVALS: Final = 2
"""After so many of its own intervals without sight an observer waits a whole silence limit before it judges."""
STALLED_S: Final = 3.0
"""A fencer whose own look comes so much too late was itself paused, and was blind meanwhile."""
TAKE_OVER_S: Final = 60.0
"""A fence that its living fencer has not moved for so long is carried on by another: longer than any attempt."""
TAKE_OVER_RESTING_S: Final = 360.0
"""The same for a fence that rests between attempts."""
TAKE_OVER_ORPHANED_S: Final = 5.0
"""The same where the fencer itself is condemned or silent."""
NEVER_S: Final = 1e9
"""What is said of an observer that was never acknowledged."""


class Observer(Protocol):
    """The daemon that this fencer belongs to, as far as it can judge others. Times on its own monotonic clock."""

    @property
    def own_age_s(self) -> float:
        """Since the last acknowledged renewal of its own membership was sent."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the store answers it."""
        ...


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What operators want for one host."""

    cluster: ClusterSpec
    hypervisor: Hypervisor | None
    incarnation: str = ""
    """The store's; only where it was read fresh."""

    @property
    def fencing(self) -> FencingSpec:
        """The host's own settings."""
        return FencingSpec() if self.hypervisor is None else self.hypervisor.spec.fencing

    @property
    def demanded(self) -> int:
        """Kinds of proof that must agree."""
        return max(1, self.fencing.proofs or self.cluster.fencing.proofs)

    def maintenance(self, now: float) -> str:
        """Why the host is left alone; empty where it is not."""
        return maintenance(self.cluster, self.fencing, now)


class Rules:
    """See the module."""

    def __init__(
        self,
        me: str,
        observer: Observer,
        watching: Watching,
        clusters: Informer[Cluster],
        hypervisors: Informer[Hypervisor],
        clock: Clock,
    ) -> None:
        self.rate = RateRule()
        self._me = me
        self._observer = observer
        self._watching = watching
        self._clusters = clusters
        self._hypervisors = hypervisors
        self._clock = clock
        self._sight_since: float | None = None
        self._blind_since: float | None = None
        self._looked_at: float | None = None
        self._profiles: dict[str, tuple[Profile, Profile, float]] = {}
        """Host → the profile that is applied, the one that is wished, and since when it is."""
        self._release: str | None = None
        self._released_at = float("-inf")

    # What operators want, as last seen

    def cluster(self) -> ClusterSpec:
        """Wishes for the whole cluster."""
        cluster = self._clusters.get("default")
        return ClusterSpec() if cluster is None else cluster.spec

    def settings(self, host: str) -> HostSettings:
        """Wishes for one host."""
        return HostSettings(self.cluster(), self._hypervisors.get(host))

    def domain(self, host: str) -> str | None:
        """What fails together with the host; ``None``: it fails alone."""
        name, hypervisor = self.cluster().fencing.failure_domain, self._hypervisors.get(host)
        if not name or hypervisor is None:
            return None
        return hypervisor.metadata.labels.get(DOMAIN_LABEL_PREFIX + name)

    def switch(self, host: str) -> str | None:
        """The network switch that the host hangs on; ``None``: not known, or nobody wants to know."""
        name, hypervisor = self.cluster().fencing.switch_domain, self._hypervisors.get(host)
        if not name or hypervisor is None:
            return None
        return hypervisor.metadata.labels.get(DOMAIN_LABEL_PREFIX + name) or None

    def unit(self, host: str) -> str:
        """What the rate counts: the failure domain, or the host."""
        domain = self.domain(host)
        return f"host {host}" if domain is None else f"{self.cluster().fencing.failure_domain} {domain}"

    def profile(self, host: str, record: MemberRecord) -> Profile:
        """The host's timing. A shorter one counts only when the host had time to hear of it."""
        wished = profile_of(self.cluster().fencing, self.settings(host).fencing, armed=record.guard.armed)
        kept = self._profiles.get(host)
        if kept is not None and kept[0] is wished and kept[1] is wished:
            return wished
        now = self._clock.monotonic()
        if kept is None:
            self._profiles[host] = (wished, wished, now)
            return wished
        applied, before, since = kept
        since = since if before is wished else now
        if wished.suspicion_s >= applied.suspicion_s or now - since >= applied.suspicion_s:
            applied = wished
        self._profiles[host] = (applied, wished, since)
        return applied

    def silence_s(self, host: str, seen: Seen) -> float:
        """After how long an unchanged version looks silent."""
        silence = self.profile(host, seen.record).silence_s
        if self._transition(host):
            return max(silence, self.cluster().fencing.transition_grace_s)
        return silence

    def renew_s(self, host: str) -> float:
        """How often the host renews."""
        seen = self._watching.get(host)
        return float(self._mine().renew_s if seen is None else self.profile(host, seen.record).renew_s)

    # The observer itself

    @property
    def sighted(self) -> bool:
        """Whether the observer sees, as far as it knows."""
        return self._sight_since is not None

    def look(self) -> None:
        """Note how it stands with the observer; to be called at every round."""
        now = self._clock.monotonic()
        late = self._looked_at is not None and now - self._looked_at > STALLED_S
        self._looked_at = now
        if late:
            self._sight_since = None
        if not self._sees():
            self._blind_since = now if self._blind_since is None else self._blind_since
            if now - self._blind_since >= BLIND_INTERVALS * self._mine().renew_s:
                self._sight_since = None
            return
        self._blind_since = None
        if self._sight_since is None:
            self._sight_since = now

    def heed_release(self) -> bool:
        """Whether an operator has just let fencing go on; counts begin anew then."""
        word = self.cluster().fencing.release
        before, self._release = self._release, word
        if before is None or before == word:
            return False
        self.rate.clear()
        self._released_at = self._clock.monotonic()
        return True

    def _sees(self) -> bool:
        fresh = self._observer.own_age_s < BLIND_INTERVALS * self._mine().renew_s
        return fresh and self._follows()

    def _follows(self) -> bool:
        return self._observer.connected and self._watching.stalled_s() == 0.0

    def _mine(self) -> Profile:
        seen = self._watching.get(self._me)
        return self.profile(self._me, MemberRecord(machine_id="", boot_id="") if seen is None else seen.record)

    # Judging

    def evaluation(self, spec: ClusterSpec | None = None, *, resting: bool = True) -> EvaluateInput:
        """What ``fence.evaluate`` is to look at; ``spec`` is the cluster's, where it was just read.

        Without ``resting`` it looks as if nobody were in maintenance.
        """
        spec = self.cluster() if spec is None else spec
        now, mine, policy = self._clock.monotonic(), self._mine(), spec.fencing
        released = now - self._released_at < policy.fences_window_s
        sight = 0.0 if self._sight_since is None else now - self._sight_since
        own = self._hypervisors.get(self._me)
        return EvaluateInput(
            config=EvaluateConfig(
                keepalive_interval=mine.renew_s,
                fence_intervals=mine.silence_s / mine.renew_s,
                storm_fraction=1.0 if released else policy.storm_fraction,
                transition_grace=policy.transition_grace_s,
            ),
            observer=ObserverView(
                name=self._me,
                mode="coordinator" if own is None else own.spec.mode,
                connected=self._follows(),
                own_age=min(self._observer.own_age_s, NEVER_S),
                uptime=sight,
            ),
            nodes=tuple(self._peers(now, resting)),
            maintenance=resting and cluster_maintenance(spec, self._clock.now()),
        )

    def _peers(self, now: float, resting: bool) -> Iterable[Peer]:
        wall = self._clock.now()
        for host, seen in self._watching:
            record = seen.record
            hypervisor = self._hypervisors.get(host)
            vms = 0 if hypervisor is None else len(hypervisor.status.instances)
            rests = resting and hypervisor is not None and host_maintenance(hypervisor.spec.fencing, wall)
            yield Peer(
                name=host,
                daemon_state="maintenance" if rests else self._state(host, record),
                age=now - seen.since,
                assigned_vms=vms,
                fence_owner=record.fence.by if is_open(record) else None,
                fence_owner_live=is_open(record) and not self.orphaned(host, seen, now),
                domain=self.domain(host),
                silence=self.profile(host, record).silence_s,
            )

    def _state(self, host: str, record: MemberRecord) -> str:
        if record.state == "Revoked":
            return "dead" if is_open(record) else "fenced"
        if record.state == "Released":
            return "stop"
        return {STARTING: "init", STOPPING: "shutdown"}.get(self._transition(host), "run")

    def _transition(self, host: str) -> str:
        """``Starting`` or ``Stopping``, if the host's daemon said so last."""
        hypervisor = self._hypervisors.get(host)
        told = None if hypervisor is None else condition(hypervisor.status.conditions, DAEMON_CONDITION)
        if told is None or told.status == "True" or told.reason not in (STARTING, STOPPING):
            return ""
        return told.reason

    def take_over_s(self, host: str, seen: Seen, now: float) -> float:
        """After how long without a change another may carry this open fence on."""
        by = self._watching.get(seen.record.fence.by)
        if by is None or by.record.state != "Held" or now - by.since > self.silence_s(by.membership.name, by):
            return TAKE_OVER_ORPHANED_S
        return TAKE_OVER_RESTING_S if seen.record.fence.phase == "unconfirmed" else TAKE_OVER_S

    def orphaned(self, host: str, seen: Seen, now: float) -> bool:
        """Whether nobody seems to carry this open fence on; mine is never taken from me by me."""
        return seen.record.fence.by != self._me and now - seen.since >= self.take_over_s(host, seen, now)


def refuses(result: EvaluateResult, host: str) -> str:
    """Why ``host`` must not be condemned, by an evaluation; empty where it may."""
    if result.reason is not None:
        return str(result.reason)
    return "" if host in result.suspects else "not suspected any more"
