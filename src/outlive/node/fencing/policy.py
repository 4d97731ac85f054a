"""What operators want of fencing: timing profiles, settings of one host, failure domains, orders.

Safety needs one inequality only, the wait before the proof ``watchdog`` counts (``watchdog_wait_s``); it is enforced
where that proof is made, not here. What ``profile.validate`` refuses would cost availability: hosts that stop
themselves, or are suspected, although nothing is wrong (docs/design/node-decisions.md#profilevalidate).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base import NotFound, NotUnderstood, OutliveError, get_logger
from outlive.node.fencing.proofs import CLOCK_ERROR, GUARD_SLACK_S, emptied_after_s
from outlive.resources import (
    CLUSTER,
    Cluster,
    ClusterSpec,
    FencingPolicy,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    ShutdownPolicy,
    find_condition,
)
from outlive.runtime import Amount, Count, Decision, Number, Positive
from outlive.store import Store, require_answer

_log = get_logger("node")

WRITE_LIMIT_S: Final = 2.0
"""How long one renewal may take before it counts as lost."""
DAEMON_CONDITION: Final = "Ready"
"""Condition of a Hypervisor by which its daemon says, as the reason, that it stops (``Departure``)."""
STORE_SHARE: Final = 0.2
"""The part of the store's compare-and-swaps that renewals may use."""
RENEWALS_BEFORE_STOP: Final = 3
"""Renewals that fit into the guard's limit, so that one or two lost ones stop nobody."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """When silence counts, and when an armed host stops itself. Times in seconds."""

    renew_s: Positive
    """Between two renewals (r)."""
    silence_s: Positive
    """Silence after which a host is suspected."""
    throws: Count
    """Checks that follow before it is condemned."""
    throw_s: Amount
    """Between two checks."""
    guard_timeout_s: Positive
    """Without acknowledgement for this long, the guard stops the host's virtual machines (T)."""
    watchdog_s: Amount
    """The watchdog's own time-out (W)."""
    grace_s: Amount
    """The guard's tick and the time that a reset takes (g)."""
    clock_error: Annotated[float, Meta(ge=0, lt=0.5)] = CLOCK_ERROR
    """Error of clock rates (p)."""

    @property
    def suspicion_s(self) -> Number:
        """From the last renewal seen until the host is condemned."""
        return self.silence_s + self.throws * self.throw_s

    @property
    def watchdog_wait_s(self) -> float:
        """Silence after which an armed host is certainly empty or reset, on the observer's clock."""
        return emptied_after_s(self.guard_timeout_s, self.watchdog_s, self.grace_s, self.clock_error)


class ProfileName(enum.StrEnum):
    """The profiles that come with the product."""

    FAST = "fast"
    STEADY = "steady"


PROFILES: Final[dict[ProfileName, Profile]] = {
    ProfileName.FAST: Profile(renew_s=1, silence_s=5, throws=2, throw_s=1, guard_timeout_s=5, watchdog_s=10, grace_s=2),
    ProfileName.STEADY: Profile(
        renew_s=5, silence_s=30, throws=6, throw_s=5, guard_timeout_s=25, watchdog_s=15, grace_s=2
    ),
}
"""``fast`` is for hosts whose guard is not armed, ``steady`` for armed ones, unless an operator says otherwise."""


def default_profile(*, armed: bool) -> ProfileName:
    """The profile of a host for which none was chosen."""
    return ProfileName.STEADY if armed else ProfileName.FAST


def profile_of(policy: FencingPolicy, fencing: FencingSpec, *, armed: bool = False) -> Profile:
    """The timing of a host: by its own choice, else by the cluster's, else by whether it is (to be) armed.

    Timings that no profile can have, such as a negative one, count as not there: a slip in a document must not stop
    hosts from renewing or fencers from fencing.
    """
    chosen = fencing.profile or policy.profile
    name = ProfileName(chosen) if chosen else default_profile(armed=armed or fencing.armed)
    other = policy.timings.get(name.value)
    if other is None:
        return PROFILES[name]
    changes = {each: getattr(other, each) for each in other.__struct_fields__ if getattr(other, each) is not None}
    whole = {**msgspec.structs.asdict(PROFILES[name]), **changes}
    try:
        return msgspec.convert(whole, Profile)
    except msgspec.ValidationError:
        return PROFILES[name]


class ProfileError(enum.StrEnum):
    """What is wrong with a profile."""

    GUARD_TIMEOUT_TOO_SHORT = "guard_timeout_too_short"
    GUARD_TIMEOUT_EXCEEDS_SILENCE = "guard_timeout_exceeds_silence"
    GRACE_TOO_SHORT = "grace_too_short"
    RENEW_TOO_SHORT = "renew_too_short"


class ProfileInput(msgspec.Struct, frozen=True, kw_only=True):
    """Can this profile work?"""

    profile: Literal["fast", "steady"] | Profile
    hosts: Count = 0
    store_cas_per_s: Positive | None = None
    """Compare-and-swaps that the store was measured to do each second; null: not measured."""
    write_limit_s: Amount = WRITE_LIMIT_S


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong or doubtful, and what the profile adds up to. Seconds."""

    errors: tuple[ProfileError, ...]
    warnings: tuple[str, ...]
    smallest_renew_s: float | None
    """The shortest renewal interval that the store bears; null where it was not measured."""
    suspicion_s: Number
    watchdog_wait_s: float


def validate_profile(given: ProfileInput) -> ProfileResult:
    """Check a profile against itself and against the store; all codes at once, sorted."""
    profile = PROFILES[ProfileName(given.profile)] if isinstance(given.profile, str) else given.profile
    smallest = None
    if given.store_cas_per_s is not None:
        smallest = smallest_renew_s(hosts=given.hosts, store_cas_per_s=given.store_cas_per_s)
    least_s = RENEWALS_BEFORE_STOP * profile.renew_s + given.write_limit_s
    errors = {
        ProfileError.GUARD_TIMEOUT_TOO_SHORT: profile.guard_timeout_s < least_s,
        ProfileError.GUARD_TIMEOUT_EXCEEDS_SILENCE: profile.guard_timeout_s > profile.silence_s,
        ProfileError.GRACE_TOO_SHORT: profile.grace_s < GUARD_SLACK_S,
        ProfileError.RENEW_TOO_SHORT: smallest is not None and profile.renew_s < smallest,
    }
    return ProfileResult(
        errors=tuple(sorted(code for code, found in errors.items() if found)),
        warnings=() if smallest is not None else ("store_not_measured",),
        smallest_renew_s=smallest,
        suspicion_s=profile.suspicion_s,
        watchdog_wait_s=profile.watchdog_wait_s,
    )


def smallest_renew_s(*, hosts: int, store_cas_per_s: float) -> float:
    """The shortest interval at which so many hosts may renew, leaving most of the store to others."""
    return hosts / (STORE_SHARE * store_cas_per_s)


VALIDATE_PROFILE: Final = Decision(
    "profile.validate", validate_profile, ProfileInput, ProfileResult, "Whether a timing profile can work"
)


SHORT_DETECTION_S: Final = 30.0
"""Silence that condemned a host sooner than this was doubtful for a daemon that compared wall clocks."""


class FencingConfigInput(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of another node daemon, in its own words: counts of keepalive intervals, seconds otherwise."""

    keepalive_interval: Positive
    fence_intervals: Amount
    """0: nobody is fenced."""
    saving_throws: Amount
    self_fence_intervals: Amount
    """0: no host empties itself."""
    watchdog_timeout: Amount
    failed_fence: Literal["migrate", "none"] = "none"
    successful_fence: Literal["migrate", "none"] = "migrate"
    watchdog_mode: Literal["off", "automatic", "required"] = "automatic"


class FencingConfigResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong or doubtful with it, sorted, and what it adds up to in seconds."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    safe_after: float | None
    """After so much silence a host had certainly emptied itself; null: never."""
    earliest_recovery: float


def validate_fencing(given: FencingConfigInput) -> FencingConfigResult:
    """Check the timing of a configuration that is imported; all codes at once."""
    interval, own = given.keepalive_interval, given.self_fence_intervals
    safe_after = interval * own + 2 * interval + given.watchdog_timeout if own else None
    if not given.fence_intervals:
        return FencingConfigResult(
            errors=(), warnings=("fencing_disabled",), safe_after=safe_after, earliest_recovery=0.0
        )
    earliest = interval * (given.fence_intervals + given.saving_throws)
    unproven = given.failed_fence == "migrate"
    errors = {
        "failed_fence_needs_self_fence": unproven and not own,
        "failed_fence_needs_watchdog": unproven and bool(own) and given.watchdog_mode != "required",
        "self_fence_too_late": unproven and safe_after is not None and safe_after > earliest,
    }
    warnings = {
        "self_fence_exceeds_fence": own > given.fence_intervals,
        "short_detection": earliest < SHORT_DETECTION_S,
        "no_recovery": given.successful_fence == "none",
    }
    return FencingConfigResult(
        errors=tuple(sorted(code for code, found in errors.items() if found)),
        warnings=tuple(sorted(code for code, found in warnings.items() if found)),
        safe_after=safe_after,
        earliest_recovery=earliest,
    )


VALIDATE_FENCING: Final = Decision(
    "config.validate_fencing",
    validate_fencing,
    FencingConfigInput,
    FencingConfigResult,
    "Whether the timing of an imported node configuration could work",
)


class Departure(enum.StrEnum):
    """How a host went, as it said itself; the values are reasons of the condition ``Ready``."""

    NONE = ""
    """It said nothing: it runs, or it died."""
    DAEMON = "Stopping"
    """Its daemon alone stops, as for an upgrade; VMs run on."""
    MACHINE = "GoingDown"
    """The machine goes down, and what it holds goes down with it."""
    LEFT = "Released"
    """It runs and holds nothing, and left its membership."""


def departure_of(host: Hypervisor | None, *, released: bool = False) -> Departure:
    """What the host said last; ``released``: what its Membership says counts before it."""
    if released:
        return Departure.LEFT
    ready = None if host is None else find_condition(host.status.conditions, DAEMON_CONDITION)
    if ready is None or ready.status == "True" or ready.reason not in (Departure.DAEMON, Departure.MACHINE):
        return Departure.NONE
    return Departure(ready.reason)


def absence_limit_s(departure: Departure, profile: Profile, grace_s: float, planned: str = "") -> float:
    """How long a host may be silent; what it did cleanly counts here and nowhere else.

    A machine that goes down gets no more time than one that dies: its VMs are down. A daemon that stops alone gets
    ``grace_s``, because its VMs run on. Of a host that left its membership nothing has to be proven, so that its limit
    takes the place of suspicion and looks. Infinite where ``planned`` work is announced, which nobody fences for.
    """
    if planned:
        return math.inf
    match departure:
        case Departure.NONE | Departure.MACHINE:
            return float(profile.silence_s)
        case Departure.DAEMON:
            return max(float(profile.silence_s), grace_s)
        case Departure.LEFT:
            return float(profile.suspicion_s)


def fence_order(text: str, uid: str) -> tuple[int, str, str] | None:
    """``spec.fencing.requested``, ``<epoch>[@<uid>]|<name>|<reason>``: that epoch, who, why; ``None`` for other texts.

    ``uid``: of the host's Membership now. Epochs of another one, as of a machine that was replaced, are other epochs.
    """
    order, _, rest = text.partition("|")
    epoch, _, of = order.partition("@")
    if of not in ("", uid):
        return None
    name, _, reason = rest.partition("|")
    if not epoch.strip().isdecimal() or not name.strip() or not reason.strip():
        return None
    return int(epoch), name.strip(), reason.strip()


def operator_assertion(text: str) -> tuple[str, str, str] | None:
    """``spec.fencing.operatorProof``, ``<fence>|<name>|<reason>``: somebody says that a host is off; else ``None``."""
    parts = text.split("|", 2)
    return (parts[0].strip(), parts[1].strip(), parts[2].strip()) if len(parts) == 3 else None


@dataclass(slots=True)
class HostSettings:
    """What operators want of one host and of the cluster, as it was read or last seen; ``None``: there is none."""

    cluster: Cluster | None
    hypervisor: Hypervisor | None

    @property
    def spec(self) -> HypervisorSpec:
        """Of the host."""
        return HypervisorSpec() if self.hypervisor is None else self.hypervisor.spec

    @property
    def fencing(self) -> FencingSpec:
        """The host's own settings."""
        return self.spec.fencing

    @property
    def cluster_spec(self) -> ClusterSpec:
        """Of the cluster."""
        return ClusterSpec() if self.cluster is None else self.cluster.spec

    @property
    def incarnation(self) -> str:
        """The store's; empty while nobody has said."""
        return "" if self.cluster is None else self.cluster.status.store_incarnation

    @property
    def paused(self) -> bool:
        """Whether the cluster is paused."""
        return self.cluster is not None and self.cluster.paused

    @property
    def demanded(self) -> int:
        """Kinds of proof that must agree."""
        return max(1, self.fencing.proofs or self.cluster_spec.fencing.proofs)

    def active_maintenance(self, now: float) -> str:
        """Which maintenance keeps the host from being condemned; empty: none."""
        why = self.cluster_spec.resting_reason(now)
        return why or ("maintenance of this host" if self.fencing.is_in_maintenance(now) else "")

    def explain_spared(self, now: float) -> str:
        """Why the host is not condemned now: maintenance, or a change of the storage schema; empty: nothing."""
        return self.active_maintenance(now) or ("" if self.cluster is None else self.cluster.schema_hold(now))

    @property
    def shutdown_policy(self) -> ShutdownPolicy:
        """What becomes of the host's VMs when it goes down cleanly."""
        return self.spec.shutdown_policy or self.cluster_spec.shutdown_policy or "failover"

    def is_awaited(self, departure: Departure) -> bool:
        """Whether a host that went like this is never condemned for it, because its VMs wait for it."""
        return self.shutdown_policy == "freeze" and departure in (Departure.MACHINE, Departure.LEFT)

    def planned_work(self, now: float, departure: Departure) -> str:
        """Which announced work, or policy, a host that went cleanly is waited for; empty: none."""
        if why := self.active_maintenance(now):
            return why
        if self.is_awaited(departure):
            return "its shutdown policy is freeze"
        if self.spec.drain:
            return "it is to be emptied"
        return f"spec.maintenance is {self.spec.maintenance}" if self.spec.maintenance else ""

    def keeps_power(self, now: float) -> bool:
        """Whether some maintenance forbids commands to the host's BMC."""
        return self.fencing.power_in_maintenance(now) or self.active_maintenance(now) != ""


class DesiredState(HostSettings):
    """What operators want of this host and of the cluster, as the daemon last read it.

    Read every few seconds rather than watched: a watch of all hosts would bring each daemon every other host's figures.
    While the store is away the last reading applies.
    """

    def __init__(self, store: Store, host: str) -> None:
        super().__init__(None, None)
        self.host = host
        self._store = store
        self._profile: tuple[FencingPolicy, FencingSpec, Profile] | None = None
        """What the last timing was made of, and the timing."""
        self.not_understood = ""
        """Why the last reading was not: it is that of another version."""

    async def refresh(self) -> None:
        """Read again; errors of the store are the caller's, except that there may be no ``Cluster``."""
        with require_answer(f"Hypervisor/{self.host}"):
            self.hypervisor = await self._store.get(Hypervisor, self.host)
        try:
            with require_answer(f"Cluster/{CLUSTER}"):
                self.cluster = await self._store.get(Cluster, CLUSTER)
        except NotFound:
            self.cluster = None

    async def try_refresh(self) -> None:
        """Read again, unless the store does not answer."""
        try:
            await self.refresh()
        except OutliveError as error:
            self.not_understood = str(error) if isinstance(error, NotUnderstood) else ""
            _log.warning("node.desired_state_not_read", host=self.host, error=str(error))
        else:
            self.not_understood = ""

    @property
    def profile(self) -> Profile:
        """Timing of this host."""
        policy, fencing = self.cluster_spec.fencing, self.fencing
        made = self._profile
        if made is None or made[0] is not policy or made[1] is not fencing:
            self._profile = made = (policy, fencing, profile_of(policy, fencing))
        return made[2]
