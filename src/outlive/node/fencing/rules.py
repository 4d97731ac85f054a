"""When a silent host may be condemned: rules that keep healthy hosts running when it is the fencer that errs.

This module collects the input of ``fence.evaluate`` and ``fence.looks``: how fresh the observer itself is, how
long it has followed the store without a gap, maintenance, hosts that start or stop, how much is silent at once, and
since when a host's guard and BMC are known to be good. Nothing of this is needed for safety, and nothing
of it proves anything (docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from outlive.node.fencing.policy import (
    Departure,
    HostSettings,
    Profile,
    absence_limit_s,
    departure_of,
    profile_of,
)
from outlive.node.fencing.power import ANSWER_LEAST_S, ANSWER_MOST_S
from outlive.node.fencing.states import is_open
from outlive.node.fencing.suspicion import (
    FENCE_LOOKS,
    EvaluateConfig,
    EvaluateInput,
    EvaluateResult,
    Looks,
    LooksInput,
    LooksResult,
    ObserverView,
    Peer,
    is_too_slow,
)
from outlive.node.fencing.watcher import SeenHost
from outlive.resources import CLUSTER, DOMAIN_LABEL_PREFIX, ClusterSpec, Hypervisor, MemberRecord, SilentPeer

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext

UNITS_LIMIT: Final = 10_000
"""Domains that are remembered; the oldest goes first."""
BLIND_INTERVALS: Final = 2
"""After so many of its own intervals without sight an observer waits a whole silence limit before it judges."""
STALLED_S: Final = 3.0
"""A fencer whose own look comes so much too late was itself paused, and was blind meanwhile."""
TAKE_OVER_S: Final = 60.0
"""A fence that its living fencer has not moved for so long is carried on by another: longer than any attempt at a host
whose BMC answers fast,"""
ATTEMPT_ANSWERS: Final = 5
"""and longer by so many answers, each by what it may take more: who it is, the command, and three readings."""
TAKE_OVER_RESTING_S: Final = 360.0
"""The same for a fence that rests between attempts."""
TAKE_OVER_ORPHANED_S: Final = 5.0
"""The same where the fencer itself is condemned or silent."""
NEVER_S: Final = 1e9
"""What is said of an observer that was never acknowledged."""


class Observer(Protocol):
    """The daemon that this fencer belongs to. Times are of its own monotonic clock."""

    @property
    def own_age_s(self) -> float:
        """Since the last acknowledged renewal of its own membership was sent."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the store answers it."""
        ...

    def publish_silent(self, silent: tuple[SilentPeer, ...], *, soon: bool) -> None:
        """Say with every renewal from now on who is silent; ``soon``: bring the next one forward."""
        ...


class RateRule:
    """The rate at which failure domains may be fenced without anybody looking.

    A fencer counts every domain in which it saw a host condemned or proven dead, by any fencer. A domain that was
    counted already may lose more hosts: a rack that dies slowly is one failure. A restarted fencer counts anew.
    """

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._reserved: dict[str, int] = {}

    def count(self, unit: str, now: float) -> None:
        """A host of this unit was condemned, or proven dead."""
        self._at.pop(unit, None)
        self._at[unit] = now
        if len(self._at) > UNITS_LIMIT:
            del self._at[next(iter(self._at))]

    def reserve(self, unit: str, now: float, *, limit: int, window_s: float) -> bool:
        """Count the unit until ``release``, if one more is allowed; ``False`` if not."""
        counted = {one for one, at in self._at.items() if now - at < window_s} | set(self._reserved)
        if unit not in counted and len(counted) >= limit:
            return False
        self._reserved[unit] = self._reserved.get(unit, 0) + 1
        return True

    def release(self, unit: str) -> None:
        """What was reserved has been tried; if a host was condemned, that is counted now."""
        left = self._reserved.get(unit, 0) - 1
        if left > 0:
            self._reserved[unit] = left
        else:
            self._reserved.pop(unit, None)

    def clear(self) -> None:
        """Somebody looked: begin anew."""
        self._at.clear()


class Rules:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self.rate = RateRule()
        self._context = context
        self._profiles: dict[str, tuple[Profile, Profile, float]] = {}
        """Host → the profile that is applied, the one that is wanted, and since when it is."""
        self._sight_since: float | None = None
        self._blind_since: float | None = None
        self._looked_at: float | None = None
        self._release: str | None = None
        self._released_at = float("-inf")

    # What operators want, as last seen

    def cluster_spec(self) -> ClusterSpec:
        """Of the whole cluster."""
        return HostSettings(self._context.clusters.get(CLUSTER), None).cluster_spec

    def settings_of(self, host: str) -> HostSettings:
        """Of one host."""
        return HostSettings(self._context.clusters.get(CLUSTER), self._context.hypervisors.get(host))

    def failure_domain(self, host: str) -> str | None:
        """What fails together with the host; ``None``: it fails alone."""
        return self._label_of(host, self.cluster_spec().fencing.failure_domain)

    def switch_of(self, host: str) -> str | None:
        """The network switch of the host; ``None``: not known, or nobody wants to know."""
        return self._label_of(host, self.cluster_spec().fencing.switch_domain) or None

    def _label_of(self, host: str, name: str) -> str | None:
        hypervisor = self._context.hypervisors.get(host)
        return hypervisor.metadata.labels.get(DOMAIN_LABEL_PREFIX + name) if name and hypervisor is not None else None

    def rate_unit(self, host: str) -> str:
        """What the rate of fences counts: the failure domain, or the host."""
        domain = self.failure_domain(host)
        return f"host {host}" if domain is None else f"{self.cluster_spec().fencing.failure_domain} {domain}"

    def profile_of(self, host: str, record: MemberRecord) -> Profile:
        """The host's timing. A shorter one counts only once the host had time to read it."""
        wanted = profile_of(self.cluster_spec().fencing, self.settings_of(host).fencing, armed=record.guard.armed)
        now = self._context.clock.monotonic()
        applied, before, since = self._profiles.get(host, (wanted, wanted, now))
        since = since if before == wanted else now
        if wanted.suspicion_s >= applied.suspicion_s or now - since >= applied.suspicion_s:
            applied = wanted
        self._profiles[host] = (applied, wanted, since)
        return applied

    def host_departure(self, host: str) -> Departure:
        """How the host's daemon said last that it stops."""
        return departure_of(self._context.hypervisors.get(host))

    # Limits of silence

    def silence_s(self, host: str, seen: SeenHost) -> float:
        """After how long an unchanged version looks silent."""
        grace_s = self.cluster_spec().fencing.transition_grace_s
        return absence_limit_s(self.host_departure(host), self.profile_of(host, seen.record), grace_s)

    def renew_s(self, host: str) -> float:
        """How often the host renews."""
        seen = self._context.watcher.get(host)
        return float(self._own_profile().renew_s if seen is None else self.profile_of(host, seen.record).renew_s)

    def last_renewal(self, host: str) -> tuple[int, float] | None:
        """Number and pace of the last renewal that was seen of a host; ``None`` for one that has no membership."""
        seen = self._context.watcher.get(host)
        return None if seen is None else (seen.record.seq, self.renew_s(host))

    # The observer itself

    @property
    def has_sight(self) -> bool:
        """Whether the observer sees, as far as it knows."""
        return self._sight_since is not None

    def observe(self) -> None:
        """Note the state of the observer; to be called at every round."""
        now = self._context.clock.monotonic()
        late = self._looked_at is not None and now - self._looked_at > STALLED_S
        self._looked_at = now
        if late:
            self._sight_since = None
        fresh = self._context.observer.own_age_s < BLIND_INTERVALS * self._own_profile().renew_s
        if not (fresh and self._follows()):
            self._blind_since = now if self._blind_since is None else self._blind_since
            if now - self._blind_since >= BLIND_INTERVALS * self._own_profile().renew_s:
                self._sight_since = None
            return
        self._blind_since = None
        if self._sight_since is None:
            self._sight_since = now

    def check_release(self) -> bool:
        """Whether an operator has just let fencing go on; counts begin anew then."""
        word = self.cluster_spec().fencing.release
        before, self._release = self._release, word
        if before is None or before == word:
            return False
        self.rate.clear()
        self._released_at = self._context.clock.monotonic()
        return True

    def _follows(self) -> bool:
        return self._context.observer.connected and self._context.memberships.stalled_s() == 0.0

    def _own_profile(self) -> Profile:
        seen = self._context.watcher.get(self._context.me)
        return self.profile_of(
            self._context.me, MemberRecord(machine_id="", boot_id="") if seen is None else seen.record
        )

    # Judging

    def evaluation_input(self, *, resting: bool = True) -> EvaluateInput:
        """The input of ``fence.evaluate``; without ``resting`` it looks as if nobody were in maintenance."""
        spec = self.cluster_spec()
        now, mine, policy = self._context.clock.monotonic(), self._own_profile(), spec.fencing
        released = now - self._released_at < policy.fences_window_s
        sight = 0.0 if self._sight_since is None else now - self._sight_since
        own = self._context.hypervisors.get(self._context.me)
        cluster, wall = self._context.clusters.get(CLUSTER), self._context.clock.now()
        rests = resting and cluster is not None and cluster.spec.resting_reason(wall) != ""
        changes = cluster is not None and cluster.schema_hold(wall) != ""  # renewals may be late meanwhile
        return EvaluateInput(
            config=EvaluateConfig(
                keepalive_interval=mine.renew_s,
                fence_intervals=mine.silence_s / mine.renew_s,
                storm_fraction=1.0 if released else policy.storm_fraction,
                transition_grace=policy.transition_grace_s,
            ),
            observer=ObserverView(
                name=self._context.me,
                mode="coordinator" if own is None else own.spec.mode,
                connected=self._follows(),
                own_age=min(self._context.observer.own_age_s, NEVER_S),
                uptime=sight,
            ),
            nodes=tuple(self._list_peers(now, resting)),
            maintenance=rests or changes,
            primary=self._context.primary() or None,
        )

    def _list_peers(self, now: float, resting: bool) -> Iterable[Peer]:
        wall = self._context.clock.now()
        for host, seen in self._context.watcher:
            record = seen.record
            hypervisor = self._context.hypervisors.get(host)
            rests = resting and hypervisor is not None and hypervisor.spec.fencing.is_in_maintenance(wall)
            departure = self.host_departure(host)
            if rests or self.settings_of(host).is_awaited(departure):
                state = "maintenance"
            elif record.state == "Revoked":
                state = "dead" if is_open(record) else "fenced"
            elif record.state == "Released":
                state = "stop"
            else:
                state = "shutdown" if departure is Departure.DAEMON else "run"
            yield Peer(
                name=host,
                daemon_state=state,
                age=now - seen.since,
                assigned_vms=1 if record.state == "Held" else 0,  # who runs and holds nothing has left (Released)
                fence_owner=record.fence.by if is_open(record) else None,
                fence_owner_live=is_open(record) and not self.is_orphaned(host, seen, now),
                domain=self.failure_domain(host),
                silence=self.profile_of(host, record).silence_s,
            )

    def take_over_s(self, host: str, seen: SeenHost, now: float) -> float:
        """After how long without a change another may carry this open fence on."""
        by = self._context.watcher.get(seen.record.fence.by)
        if by is None or by.record.state != "Held" or now - by.since > self.silence_s(by.membership.name, by):
            return TAKE_OVER_ORPHANED_S
        if seen.record.fence.phase == "unconfirmed":
            return TAKE_OVER_RESTING_S
        again = seen.record.fence.attempt > 1  # a slow controller got more time
        limit_s = ANSWER_MOST_S if again else self._context.answer_limit_s(self.settings_of(host))
        return TAKE_OVER_S + ATTEMPT_ANSWERS * max(0.0, limit_s - ANSWER_LEAST_S)

    def is_orphaned(self, host: str, seen: SeenHost, now: float) -> bool:
        """Whether nobody seems to carry this open fence on; mine is never taken from me by me."""
        return seen.record.fence.by != self._context.me and now - seen.since >= self.take_over_s(host, seen, now)

    # How often a host is looked at

    def decide_looks(self, host: str, seen: SeenHost) -> LooksResult:
        """How often the host is looked at before it is condemned, as of now.

        A guard is found good by every renewal that says it is armed; a BMC by every reading of this very
        fencer. What was contradicted before, or is being worked on, is not good.
        """
        profile, hypervisor = self.profile_of(host, seen.record), self.settings_of(host).hypervisor
        objective_s = None if hypervisor is None else hypervisor.status.recovery_time_objective_s
        said_off = self._context.identities.says_off(host, seen.version)
        if hypervisor is None or (objective_s is None and not said_off):
            return LooksResult(throws=profile.throws, throw_s=profile.throw_s, reason=Looks.NO_OBJECTIVE)
        fencing, distrusted = hypervisor.spec.fencing, seen.record.distrusted
        guarded = seen.record.guard.armed and "watchdog" not in distrusted
        works_on_it = fencing.power_in_maintenance(self._context.clock.now())
        powered = bool(fencing.driver) and "power" not in distrusted and not works_on_it
        given = LooksInput(
            silence_s=self.silence_s(host, seen),
            throws=profile.throws,
            throw_s=profile.throw_s,
            objective_s=None if objective_s is None else max(0.0, objective_s),
            guard_s=self._context.clock.monotonic() - seen.since if guarded else None,
            power_s=self._context.rehearsals.good_age_s(hypervisor.name) if powered else None,
            said_off=said_off,
        )
        return self._context.decisions.use(FENCE_LOOKS, given, subject=host)

    def is_strict(self, hypervisor: Hypervisor) -> bool:
        """Whether the host's VMs have an objective for which its usual looks take too long."""
        objective_s, seen = hypervisor.status.recovery_time_objective_s, self._context.watcher.get(hypervisor.name)
        if objective_s is None or seen is None:
            return False
        profile = self.profile_of(hypervisor.name, seen.record)
        return is_too_slow(profile.silence_s, profile.throws, profile.throw_s, objective_s)


def explain_refusal(result: EvaluateResult, host: str) -> str:
    """Why ``host`` must not be condemned, by an evaluation; empty where it may."""
    if result.reason is not None:
        return str(result.reason)
    return "" if host in result.suspects else "not suspected any more"
