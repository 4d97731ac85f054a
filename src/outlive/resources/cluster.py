"""The cluster itself, elections, events and records of decisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from outlive.resources.hosts import HostSelector, ShutdownPolicy
from outlive.resources.memberships import MemberRecord
from outlive.resources.meta import KindInfo, ObjectRef, Part, Quota, Resource, Writers, is_in_effect, limit_entries
from outlive.resources.policies import RecoveryLimits

FORMER_LIMIT: Final = 16
"""So many incarnations that the store had before are kept."""


Disarmed = Literal["", "freeze", "ignore"]


class Timing(Part, frozen=True, kw_only=True):
    """Changes to a profile; absent values stay as the profile has them. ``profile.validate`` checks them."""

    renew_s: float | None = None
    """Seconds between two renewals of a host."""
    silence_s: float | None = None
    """Seconds without a renewal after which a host is suspected."""
    throws: int | None = None
    """Checks of a suspected host before it is condemned."""
    throw_s: float | None = None
    """Seconds between two such checks (``throws``)."""
    guard_timeout_s: float | None = None
    """T: seconds without an acknowledged renewal after which the guard stops the host's VMs."""
    watchdog_s: float | None = None
    """W: seconds without being fed after which the watchdog resets the host."""
    grace_s: float | None = None
    """The guard's tick and the time of a reset; at least 2."""


class FencingPolicy(Part, frozen=True, kw_only=True):
    """How hosts are declared dead, unless their own spec says otherwise."""

    profile: Literal["", "fast", "steady"] = ""
    """Timing of hosts; empty: ``steady`` for armed hosts, ``fast`` for others."""
    timings: dict[Literal["fast", "steady"], Timing] = {}
    """Profile → changes to it."""
    failure_domain: str = "rack"
    """Hosts with the same label ``outlive.dev/domain-<this>`` count once in storm and rate rules and are fenced
    together."""
    switch_domain: str = "switch"
    """Silence counts once coordinators with different labels ``outlive.dev/domain-<this>`` see it; empty, or no labels:
    one is enough."""
    second_observer_s: float = 2.0
    """How long a coordinator waits for the second one; then it decides alone."""
    storm_fraction: float = 0.5
    """If more than this share of hosts and failure domains is silent, no host is condemned."""
    fences_limit: int = 2
    """Failure domains that may be fenced within ``fencesWindowS`` without a release."""
    fences_window_s: float = 600.0
    """Seconds over which ``fencesLimit`` counts."""
    release: str = ""
    """A new value lets fencing continue after a storm or the limit (``outlive fence release``)."""
    proofs: int = 1
    """Kinds of proof that must agree before a host counts as dead."""
    answer_limit_s: float | None = None
    """How long an answer of a BMC may take; absent: as rehearsals measured (docs/how-to/fencing.md#slow)."""
    power_on_after: bool = False
    """Switch the host on again once its VMs are placed."""
    flap_deaths: Annotated[int, Meta(ge=0, le=16)] = 3
    """Deaths within ``flapWindowS`` that put a host in quarantine: it takes no VM. 0: never."""
    flap_window_s: Annotated[float, Meta(ge=60, le=604_800)] = 3600.0
    """Seconds over which ``flapDeaths`` counts."""
    quarantine_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 86_400.0
    """Length of the quarantine, unless an operator ends it (``outlive host release``)."""
    transition_grace_s: float = 45.0
    """How long the daemon of a host with VMs may be stopped."""


class DegradingPolicy(Part, frozen=True, kw_only=True):
    """What happens to hosts that get slow before they fall silent (docs/how-to/degrading.md)."""

    action: Literal["leave", "tell", "off"] = "leave"
    """``leave``: protected VMs that can move live leave; ``tell``: only a fault; ``off``: no scores."""
    window_s: float = 30.0
    """Time over which hosts are scored, at least 5."""
    quiet_s: float = 180.0
    """How long a host must be good again to count as recovered."""
    settle_s: float = 30.0
    """How long VMs wait before they leave, in case other hosts degrade too."""
    common_share: float = 0.25
    """If more than this share of working hosts degrade together, no VM leaves."""
    leaving_share: float = 0.0
    """Share of working hosts that VMs may leave at once; at least one."""
    failures: int = 3
    """Live moves in a row that may fail before the VMs stay."""


class RebalancePolicy(Part, frozen=True, kw_only=True):
    """Whether VMs move from full hosts to emptier ones automatically (docs/how-to/policies.md#rebalancing)."""

    mode: Literal["off", "auto"] = "off"
    """``auto``: in the background; ``off``: only by ``outlive rebalance``."""
    threshold: Annotated[float, Meta(ge=0.01, le=1.0)] = 0.2
    """VMs move if hosts differ by this share of capacity, until they differ by half of it."""
    moves: Annotated[int, Meta(ge=1, le=100)] = 4
    """Moves of one cycle at most."""
    pause_s: Annotated[float, Meta(ge=10.0)] = 300.0
    """Seconds between two cycles."""


class PrimaryRequest(Part, frozen=True, kw_only=True):
    """That a host become the primary coordinator, or give that up."""

    id: str
    """Names the request: its answer refers to it."""
    verb: Literal["primary", "secondary"]
    """``primary``: the host takes the role; ``secondary``: the host gives it up."""
    host: str
    """The coordinator that is meant."""


class SchemaWish(Part, frozen=True, kw_only=True):
    """Which storage schema the cluster is to have (docs/how-to/upgrades.md)."""

    to: Annotated[int, Meta(ge=1)] | None = None
    """The wanted schema, also an older one; absent: the newest that all hosts know."""
    exclude: Annotated[tuple[str, ...], limit_entries(1000)] = ()
    """Hosts to ignore, stopped or fenced for more than a day."""


SystemNetworkName = Literal["upstream", "cluster", "storage"]


class SystemNetwork(Part, frozen=True, kw_only=True):
    """A network of the hosts themselves, on hosts that make their own links (section ``links`` of ``node.yaml``)."""

    cidr: str
    """Such as ``10.0.0.0/24``, with all host bits zero."""
    floating: str
    """Address that the primary coordinator has besides its own."""
    gateway: str = ""
    """Address of its router, for ``upstream`` the default route of hosts; empty: none."""


class ClusterSpec(Part, frozen=True, kw_only=True):
    """What operators want of the whole cluster."""

    description: str = ""
    """What people say of the cluster."""
    maintenance: bool = False
    """No host is condemned, and no condemned host is powered off."""
    maintenance_until: datetime | None = None
    """When maintenance ends; absent: when an operator ends it."""
    disarmed: Disarmed = ""
    """High availability is off: no host is condemned, no VM recovered or evacuated, all guards are disarmed.
    ``freeze``: users' requests are refused; ``ignore``: they are carried out."""
    disarmed_since: datetime | None = None
    """When an operator disarmed it."""
    disarmed_until: datetime | None = None
    """When it is armed again; absent: when an operator arms it."""
    fencing: FencingPolicy = FencingPolicy()
    degrading: DegradingPolicy = DegradingPolicy()
    recovery: RecoveryLimits = RecoveryLimits()
    """How often VMs that do not start are tried, unless their own specs say otherwise."""
    rebalance: RebalancePolicy = RebalancePolicy()
    shutdown_policy: ShutdownPolicy = ""
    """What happens to VMs of hosts that shut down cleanly; empty: ``failover``."""
    default_selector: HostSelector = ""
    """How a flush chooses hosts for VMs without a selector; empty: ``mem``."""
    primary: PrimaryRequest | None = None
    """The last request to hand over the role of the primary coordinator."""
    schema: SchemaWish = SchemaWish()
    """The last wish for another storage schema."""
    system_networks: dict[SystemNetworkName, SystemNetwork] = {}
    """Networks of the hosts: ``upstream`` (routed, for the API), ``cluster`` (between hosts), ``storage``
    (docs/how-to/networks.md)."""
    confirmed_incarnation: str = ""
    """The store's incarnation in which an operator ends the pause: hosts that have not registered are lost."""

    def is_in_maintenance(self, now: float) -> bool:
        """Whether the whole cluster is in maintenance by its own setting."""
        return is_in_effect(self.maintenance, self.maintenance_until, now)

    def disarmed_mode(self, now: float) -> Disarmed:
        """How the cluster is disarmed at ``now``; empty: it is not."""
        return self.disarmed if is_in_effect(self.disarmed != "", self.disarmed_until, now) else ""

    def resting_reason(self, now: float) -> str:
        """Why no host is condemned and no fault of one is raised: maintenance, or disarmed; empty: hosts are."""
        if self.is_in_maintenance(now):
            return "maintenance of the cluster"
        mode = self.disarmed_mode(now)
        return f"the cluster being disarmed ({mode})" if mode else ""


CLUSTER_ID_ANNOTATION: Final = "outlive.dev/cluster-id"
"""Of a ``Cluster`` that was moved to another store: its uid there before, by which others still know it."""
CLUSTER: Final = "default"
"""The name of the only ``Cluster``."""


class Pause(Part, frozen=True, kw_only=True):
    """The store went back: no VM is started, moved or recovered until all hosts have registered."""

    reason: Literal["restored", "went-back"] = "restored"
    """``went-back``: a host misses a write that the store had acknowledged, and no operator announced a restore."""
    since: datetime | None = None
    """When the store was found to have gone back."""
    waits_for: tuple[str, ...] = ()
    """Hosts that have not registered what they run, and hosts that the backup lacks."""


SCHEMA_HOLD_S: Final = 300.0
"""How long an upgrade of the storage schema keeps hosts from being condemned, at most."""


class SchemaHold(Part, frozen=True, kw_only=True):
    """The storage schema is being changed: no host is condemned meanwhile, for at most five minutes."""

    to: int
    """The schema that the cluster goes to."""
    since: datetime
    """When the change began."""
    by: str = ""
    """Who carries it out."""


class SchemaStep(Part, frozen=True, kw_only=True):
    """One step of the storage schema that was carried out."""

    start: int = msgspec.field(name="from")
    """The schema before."""
    to: int
    """The schema after: the one above or below it."""
    ended_at: datetime
    """When the step was done."""
    by: str = ""
    """Who carried it out."""


SCHEMA_STEPS: Final = 16
"""Steps of the storage schema that are kept."""


class ClusterSchema(Part, frozen=True, kw_only=True):
    """The storage schema by which the store is written."""

    version: int = 0
    """Its number; 0: not recorded, which means 1."""
    hold: SchemaHold | None = None
    """Absent: it is not being changed."""
    journal: Annotated[tuple[SchemaStep, ...], limit_entries(SCHEMA_STEPS)] = ()
    """The last steps, the newest last."""
    waiting_for: Annotated[tuple[str, ...], limit_entries(1000)] = ()
    """Hosts whose version does not know the schema that others know."""


class ClusterStatus(Part, frozen=True, kw_only=True):
    """Facts about the cluster as a whole."""

    store_incarnation: str = ""
    """Changes when the store was restored from a backup, together with ``pause``."""
    former_incarnations: Annotated[tuple[str, ...], limit_entries(FORMER_LIMIT)] = ()
    """Those that it had before, the latest first; the latest sixteen."""
    schema_version: int = 0
    """Former name of ``schema.version``; read if that is 0."""
    schema: ClusterSchema = ClusterSchema()
    pause: Pause | None = None
    sealing_key: str = ""
    """Public half of the key that secrets are sealed for (docs/how-to/secrets.md)."""
    key_ids: tuple[str, ...] = ()
    """Ids of the keys in the server's key file, the newest first; coordinators fetch them."""
    lost_places: tuple[str, ...] = ()
    """Places of storage that some host does not reach, at most sixteen."""
    replicated: bool = False
    """Whether the store survives the loss of any one server."""

    def knows(self, incarnation: str) -> bool:
        """Whether the store is, or once was, the one that says this of itself; one that says nothing is known."""
        return incarnation in ("", self.store_incarnation, *self.former_incarnations)

    def with_incarnation(self, incarnation: str, pause: Pause) -> ClusterStatus:
        """Of a store that is another one now: the cluster is paused."""
        known = (self.store_incarnation, *self.former_incarnations)
        former = tuple(dict.fromkeys(one for one in known if one not in ("", incarnation)))[:FORMER_LIMIT]
        return msgspec.structs.replace(self, store_incarnation=incarnation, former_incarnations=former, pause=pause)


class Cluster(Resource, frozen=True, kw_only=True, tag="Cluster"):
    """``Cluster/default``."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="clusters",
        quota=Quota(objects=100, protocol=True),
        writers=Writers(
            fields={
                "spec": ("users", "import"),
                "status.schemaVersion": ("controller",),
                "status.schema": ("controller",),
                "status.sealingKey": ("admin",),  # its writer can read all secrets that are sealed afterwards
                "status.keyIds": ("admin",),
                "status.lostPlaces": ("recovery",),
                "status.replicated": ("controller",),
                "status.storeIncarnation": ("controller", "daemon", "recovery"),
                "status.formerIncarnations": ("controller", "daemon", "recovery"),
                "status.pause": ("controller", "daemon", "recovery"),
            },
            creates=("users", "import", "controller", "recovery"),  # recovery makes it anew, with nothing in it
            labels="refused",
        ),
        columns=(
            ("Incarnation", ".status.storeIncarnation", 0),
            ("Paused", ".status.pause.reason", 0),
            ("Maintenance", ".spec.maintenance", 0),
            ("Disarmed", ".spec.disarmed", 0),
        ),
    )

    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus = ClusterStatus()

    @property
    def schema_version(self) -> int:
        """The storage schema by which the store is written."""
        return self.status.schema.version or self.status.schema_version or 1

    def schema_hold(self, now: float) -> str:
        """Why no host is condemned while the storage schema is changed; empty: hosts are."""
        hold = self.status.schema.hold
        if hold is None or abs(now - hold.since.timestamp()) >= SCHEMA_HOLD_S:  # also one that lies far ahead is over
            return ""
        return f"the storage schema changes to {hold.to}"

    @property
    def paused(self) -> bool:
        """Whether the store went back and not every host has registered since, nor was confirmed to be lost."""
        confirmed = self.spec.confirmed_incarnation
        return self.status.pause is not None and (confirmed == "" or confirmed != self.status.store_incarnation)


def is_lost(cluster: Cluster | None, members: Iterable[MemberRecord]) -> bool:
    """Whether what ``Cluster/default`` said is gone: hosts register only in a store that it has named."""
    unnamed = cluster is None or cluster.status.store_incarnation == ""
    return unnamed and any(one.incarnation != "" for one in members)


def cluster_id(cluster: Cluster) -> str:
    """By what others know the cluster, whatever store it is in."""
    return cluster.metadata.annotations.get(CLUSTER_ID_ANNOTATION, cluster.metadata.uid)


AddressPhase = Literal["", "upstream", "cluster", "metadata", "gateways"]
"""Addresses of the primary that go from one coordinator to the next together; empty: none yet."""


class AddressHandover(Part, frozen=True, kw_only=True):
    """How far the primary's addresses have moved from one coordinator to the next."""

    leaver: str
    """The coordinator that has them so far."""
    added: AddressPhase = ""
    """The last phase whose addresses the new holder has added and announced."""
    removed: AddressPhase = ""
    """The last phase whose addresses the leaver has removed."""
    overtaken: bool = False
    """The new holder no longer waits for the leaver."""


class ElectionRecord(Part, frozen=True, kw_only=True):
    """The process that has a role. Candidates measure silence by their own clock since the last change."""

    holder: str = ""
    """The process that has the role; empty: none."""
    term: int = 0
    """Rises with every change of holder; privileged actions carry it."""
    renewals: int = 0
    """Rises with every renewal, so that candidates see a change."""
    nonce: str = ""
    """Of the last write, to recognise it after a lost answer."""
    phase: Literal["", "takeover", "relinquish"] = ""
    """Whether the holder is starting its duties, or stopping them before a hand-over."""
    previous: str = ""
    """The holder of the term before, or the one that gave the role back."""
    to: str = ""
    """To whom it is handed over; empty: to any candidate."""
    answered: str = ""
    """Id of the last request (``Cluster.spec.primary``) that a holder has carried out."""
    handover: AddressHandover | None = None
    """How far addresses have gone; absent: none are on their way."""


class Election(Resource, frozen=True, kw_only=True, tag="Election"):
    """``Election/<role>``: which of several equal processes does optional work. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="elections",
        quota=Quota(objects=100, protocol=True),
        halves=False,
        writers=Writers(fields={"record": ("candidate",)}, creates=("candidate",), labels="refused"),
        columns=(("Holder", ".record.holder", 0), ("Term", ".record.term", 0)),
    )

    record: ElectionRecord = ElectionRecord()


class Event(Resource, frozen=True, kw_only=True, tag="Event"):
    """A thing that happened to an object. One document; kept for an hour, at most 10,000."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="events",
        short_names=("oev",),
        halves=False,
        writers=Writers(fields={"": ("events",)}, creates=("events",), deletes=("events",), labels="refused"),
        quota=Quota(objects=40_000, mebibytes=128),
        columns=(
            ("Last", ".lastSeen", 0),
            ("Type", ".type", 0),
            ("Reason", ".reason", 0),
            ("Kind", ".regarding.kind", 0),
            ("Object", ".regarding.name", 0),
            ("Count", ".count", 1),
            ("Note", ".note", 0),
        ),
    )

    regarding: ObjectRef
    """The object that it happened to."""
    type: Literal["Normal", "Warning"] = "Normal"
    """``Warning`` if an operator may have to act, else ``Normal``."""
    reason: str
    """What happened, as a code in one word, such as ``RecoveryAssigned``."""
    action: str = ""
    """The action in one word, such as ``Recover``; empty: none."""
    note: str = ""
    """What happened, in words for people; at most 1,024 characters."""
    source: str = ""
    """The part of Outlive that reports it."""
    request_id: str = ""
    """Global request id of the run that caused it."""
    count: int = 1
    """How often it happened from ``firstSeen`` to ``lastSeen``."""
    first_seen: datetime
    """When it happened first."""
    last_seen: datetime
    """When it happened last."""


class DecisionRecord(Resource, frozen=True, kw_only=True, tag="DecisionRecord"):
    """A use of a decision of the safety protocol that led to an action. One document; kept for a week, at most 20,000.
    ``outlive why`` reads it, ``outlive decide`` repeats it (docs/how-to/why.md).
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="decisionrecords",
        short_names=("odec",),
        halves=False,
        writers=Writers(fields={"": ("trail",)}, creates=("trail",), deletes=("controller",), labels="refused"),
        quota=Quota(objects=50_000, mebibytes=512, owners=("by",), shares=8),
        columns=(
            ("At", ".at", 0),
            ("Decision", ".decision", 0),
            ("Subject", ".subject", 0),
            ("By", ".by", 0),
        ),
    )

    decision: str
    """Its name, as ``outlive decide --list`` shows it."""
    subject: str = ""
    """The host or VM that it is about."""
    by: str
    """The process that decided."""
    at: datetime
    """When it was decided."""
    request_id: str = ""
    """Id of the request or run, as in logs and events."""
    input: str = ""
    """As JSON; empty if it was too large for a record, which then has only the digest."""
    output: str = ""
    """The answer as JSON; empty if it was too large for a record."""
    input_digest: str = ""
    """Digest of the input: the same input has the same."""
