"""The cluster itself, elections, events and records of decisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from outlive.resources.hosts import HostSelector, ShutdownPolicy
from outlive.resources.memberships import MemberRecord
from outlive.resources.meta import KindInfo, ObjectRef, Part, Quota, Resource, Writers, at_most, lasts
from outlive.resources.policies import RecoveryLimits

FORMER_LIMIT: Final = 16
"""So many incarnations that the store had before are kept."""


Disarmed = Literal["", "freeze", "ignore"]


class Timing(Part, frozen=True, kw_only=True):
    """What is other than in the profile as it comes; absent: as it comes. Checked by ``profile.validate``."""

    renew_s: float | None = None
    """Seconds between two renewals of a host."""
    silence_s: float | None = None
    """Seconds without a renewal after which a host is suspected."""
    throws: int | None = None
    """Looks at a suspected host that follow before it is condemned."""
    throw_s: float | None = None
    """Seconds between two such looks (``throws``)."""
    guard_timeout_s: float | None = None
    """T: after so many seconds without an acknowledged renewal the guard stops the host's VMs."""
    watchdog_s: float | None = None
    """W: after so many seconds without being fed the watchdog resets the host."""
    grace_s: float | None = None
    """The guard's tick and the time that a reset takes; never less than 2."""


class FencingPolicy(Part, frozen=True, kw_only=True):
    """How hosts are declared dead, where the host's own spec says nothing else."""

    profile: Literal["", "fast", "steady"] = ""
    """Timing of every host; empty: ``steady`` for armed hosts and ``fast`` for the others."""
    timings: dict[Literal["fast", "steady"], Timing] = {}
    """Profile → what is other in it, for all hosts that have it."""
    failure_domain: str = "rack"
    """Hosts that share the label ``outlive.dev/domain-<this>`` count once in storm and rate rules, and are fenced
    together; empty: every host for itself."""
    switch_domain: str = "switch"
    """Hosts that share the label ``outlive.dev/domain-<this>`` hang on one network switch: a host is condemned for its
    silence once coordinators on two of them see it; empty, or no labels: one coordinator suffices."""
    second_observer_s: float = 2.0
    """For how long a coordinator waits for the second one, after all its looks; then it judges alone, and says so."""
    storm_fraction: float = 0.5
    """Of the running hosts, and of their failure domains; if more of both are silent at once, nobody is condemned."""
    fences_limit: int = 2
    """Failure domains that may be fenced within ``fencesWindowS`` without a release."""
    fences_window_s: float = 600.0
    """Seconds over which ``fencesLimit`` counts."""
    release: str = ""
    """An operator changes it to let fencing go on after a storm or the limit (``outlive fence release``)."""
    proofs: int = 1
    """Kinds of proof that must agree before a host counts as dead."""
    answer_limit_s: float | None = None
    """How long one answer of a power controller may take; absent: for each as rehearsals found
    (docs/operating/fencing.md#slow)."""
    power_on_after: bool = False
    """Whether the host is switched on again once its VMs are placed."""
    flap_deaths: Annotated[int, Meta(ge=0, le=16)] = 3
    """Deaths of a host within ``flapWindowS`` after which it is in quarantine: it takes no VM. 0: never."""
    flap_window_s: Annotated[float, Meta(ge=60, le=604_800)] = 3600.0
    """Seconds over which ``flapDeaths`` counts."""
    quarantine_s: Annotated[float, Meta(ge=0, le=31_536_000)] = 86_400.0
    """How long that lasts, unless somebody lets the host out before (``outlive host release``)."""
    transition_grace_s: float = 45.0
    """How long the daemon of a host may be stopped, as for an upgrade, while VMs are held there."""


class DegradingPolicy(Part, frozen=True, kw_only=True):
    """What is made of hosts that get slow before they fall silent (docs/operating/degrading.md)."""

    action: Literal["leave", "tell", "off"] = "leave"
    """``leave``: protected VMs that can move live leave; ``tell``: a fault says so; ``off``: nobody scores."""
    window_s: float = 30.0
    """Over what hosts are scored, at least 5: a host degrades when most of it was bad, or it sinks all the time."""
    quiet_s: float = 180.0
    """How long a host must do well again before it counts as recovered; at least the window."""
    settle_s: float = 30.0
    """From when a host degrades until VMs may leave it, so that it is seen whether others degrade as well."""
    common_share: float = 0.25
    """If more than this of the working hosts, and more than one, degrade together, nobody leaves: it is the store or
    the network, not the host."""
    leaving_share: float = 0.0
    """Of the working hosts, so many may be left at once; one may always."""
    failures: int = 3
    """Live moves in a row that may fail before the VMs stay."""


class RebalancePolicy(Part, frozen=True, kw_only=True):
    """Whether VMs move from full hosts to emptier ones by themselves (docs/operating/policies.md#rebalancing)."""

    mode: Literal["off", "auto"] = "off"
    """``auto``: in the background; ``off``: only by ``outlive rebalance``."""
    threshold: Annotated[float, Meta(ge=0.01, le=1.0)] = 0.2
    """VMs move once the fullest and the emptiest host are so far apart, in shares of their capacity, until they are
    half as far apart."""
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
    """Which storage schema the cluster is to have (docs/operating/upgrades.md)."""

    to: Annotated[int, Meta(ge=1)] | None = None
    """The schema that it goes to, also back to an older one; absent: the newest that all hosts know."""
    exclude: Annotated[tuple[str, ...], at_most(1000)] = ()
    """Hosts that are not waited for: they have been stopped or fenced for more than a day."""


SystemNetworkName = Literal["upstream", "cluster", "storage"]


class SystemNetwork(Part, frozen=True, kw_only=True):
    """A network of the hosts themselves, on those that make their own links (section ``links`` of ``node.yaml``)."""

    cidr: str
    """Such as ``10.0.0.0/24``, with all host bits zero."""
    floating: str
    """The address of it that the primary coordinator has beside its own."""
    gateway: str = ""
    """Address of its router; that of ``upstream`` is the hosts' default route. Empty: it has none."""


class ClusterSpec(Part, frozen=True, kw_only=True):
    """What operators want of the whole cluster."""

    description: str = ""
    """What people say of the cluster."""
    maintenance: bool = False
    """No host is condemned, and what was condemned is not powered off."""
    maintenance_until: datetime | None = None
    """When maintenance ends by itself; absent: when somebody ends it."""
    disarmed: Disarmed = ""
    """High availability rests, for planned work on networks or the store: no host is condemned, open fences wait,
    nothing is recovered or evacuated, all guards are disarmed. ``freeze``: VMs stay as they are, and users' requests
    are refused; ``ignore``: users' requests are carried out."""
    disarmed_since: datetime | None = None
    """When somebody asked for it."""
    disarmed_until: datetime | None = None
    """When it ends by itself; absent: when somebody arms the cluster again."""
    fencing: FencingPolicy = FencingPolicy()
    degrading: DegradingPolicy = DegradingPolicy()
    recovery: RecoveryLimits = RecoveryLimits()
    """How often VMs that do not start are tried, where their own specs say nothing."""
    rebalance: RebalancePolicy = RebalancePolicy()
    shutdown_policy: ShutdownPolicy = ""
    """What becomes of the VMs of hosts that go down in good order and do not say themselves; empty: ``failover``."""
    default_selector: HostSelector = ""
    """How a flush chooses hosts for VMs that do not say; empty: ``mem``."""
    primary: PrimaryRequest | None = None
    """The last request to hand the role of the primary coordinator over."""
    schema: SchemaWish = SchemaWish()
    """The last wish for another storage schema."""
    system_networks: dict[SystemNetworkName, SystemNetwork] = {}
    """Networks of the hosts themselves: ``upstream`` (routed, for the API), ``cluster`` (between hosts), ``storage``
    (docs/operating/networks.md)."""
    confirmed_incarnation: str = ""
    """The store's incarnation in which an operator confirms that hosts which have not registered are lost: the pause is
    over."""

    def in_maintenance(self, now: float) -> bool:
        """Whether the whole cluster is in maintenance by its own setting."""
        return lasts(self.maintenance, self.maintenance_until, now)

    def disarmed_mode(self, now: float) -> Disarmed:
        """How the cluster is disarmed at ``now``; empty: it is not."""
        return self.disarmed if lasts(self.disarmed != "", self.disarmed_until, now) else ""

    def resting(self, now: float) -> str:
        """Why no host is condemned and no fault of one is raised: maintenance, or disarmed; empty: hosts are."""
        if self.in_maintenance(now):
            return "maintenance of the cluster"
        mode = self.disarmed_mode(now)
        return f"the cluster being disarmed ({mode})" if mode else ""


CLUSTER_ID_ANNOTATION: Final = "outlive.dev/cluster-id"
"""Of a ``Cluster`` that was moved to another store: its uid there before, by which others still know it."""
CLUSTER: Final = "default"
"""The name of the only ``Cluster``."""


class Pause(Part, frozen=True, kw_only=True):
    """The store went back to an earlier state: nothing is started, moved, recovered or let in until all hosts spoke."""

    reason: Literal["restored", "went-back"] = "restored"
    """``went-back``: a host misses a write that the store had acknowledged, and nobody said that it was restored."""
    since: datetime | None = None
    """When the store was found to have gone back."""
    waits_for: tuple[str, ...] = ()
    """Hosts that have not registered what they run, as far as they were counted, and those that the backup lacks."""


SCHEMA_HOLD_S: Final = 300.0
"""How long an upgrade of the storage schema keeps hosts from being condemned, at most."""


class SchemaHold(Part, frozen=True, kw_only=True):
    """The storage schema is being changed: no host is condemned meanwhile, for five minutes at most."""

    to: int
    """The schema that the cluster goes to."""
    since: datetime
    """When the change began."""
    by: str = ""
    """Who carries it out."""

    def is_fresh(self, now: float) -> bool:
        """Whether it still counts. A moment that lies further ahead than clocks differ does not."""
        return abs(now - self.since.timestamp()) < SCHEMA_HOLD_S


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
    """Its number; 0: nobody has written it down, which means 1."""
    hold: SchemaHold | None = None
    """Absent: it is not being changed."""
    journal: Annotated[tuple[SchemaStep, ...], at_most(SCHEMA_STEPS)] = ()
    """The last steps, the newest last."""
    waiting_for: Annotated[tuple[str, ...], at_most(1000)] = ()
    """Hosts whose installed version does not know the schema that others know."""


class ClusterStatus(Part, frozen=True, kw_only=True):
    """Facts about the cluster as a whole."""

    store_incarnation: str = ""
    """Changes when the store was restored from a backup, together with ``pause``."""
    former_incarnations: Annotated[tuple[str, ...], at_most(FORMER_LIMIT)] = ()
    """Those that it had before, the latest first; the latest sixteen."""
    schema_version: int = 0
    """What ``schema.version`` was called before; read where that is 0."""
    schema: ClusterSchema = ClusterSchema()
    pause: Pause | None = None
    sealing_key: str = ""
    """Public half of the key that secrets are sealed for (docs/operating/secrets.md)."""
    key_ids: tuple[str, ...] = ()
    """Ids of the keys in the server's key file, the newest first: coordinators fetch them."""
    lost_places: tuple[str, ...] = ()
    """Places of storage that some host does not reach, sixteen at most: every host asks them and says in its figures
    (``usage.reached``) which of them it reaches."""
    replicated: bool = False
    """Whether the store outlives the machine of any one server; false: it is embedded in one."""

    def knows(self, incarnation: str) -> bool:
        """Whether the store is, or once was, the one that says this of itself; one that says nothing is known."""
        return incarnation in ("", self.store_incarnation, *self.former_incarnations)

    def became(self, incarnation: str, pause: Pause) -> ClusterStatus:
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
        return f"the storage schema changes to {hold.to}" if hold is not None and hold.is_fresh(now) else ""

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
    """The way of the primary's addresses from one coordinator to the next, phase by phase."""

    leaver: str
    """The coordinator that has them so far."""
    added: AddressPhase = ""
    """The last phase whose addresses the new holder has added and announced."""
    removed: AddressPhase = ""
    """The last phase whose addresses the leaver has removed."""
    overtaken: bool = False
    """Whether the new holder waits for the leaver no more."""


class ElectionRecord(Part, frozen=True, kw_only=True):
    """Who holds a role. Candidates judge silence by their own clock since they last saw this change."""

    holder: str = ""
    """Identity of the process that has the role; empty: nobody has it."""
    term: int = 0
    """Rises with every change of holder; privileged actions carry it."""
    renewals: int = 0
    """Rises with every renewal, so that a watching candidate sees a change."""
    nonce: str = ""
    """Of the last write, to recognise it after a lost answer."""
    phase: Literal["", "takeover", "relinquish"] = ""
    """Of a role with duties: the holder is starting them, or stopping them before it hands the role over."""
    previous: str = ""
    """Who held it in the term before, or has just given it back."""
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
    """Something that happened to an object. One document; kept for an hour, at most 10,000 of them."""

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
    """``Warning`` where somebody may have to act, else ``Normal``."""
    reason: str
    """What happened, as a code in one word, such as ``RecoveryAssigned``."""
    action: str = ""
    """What was being done, in one word, such as ``Recover``; empty: nothing in particular."""
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
    """One use of a decision of the safety protocol that was acted on. One document; kept for a week, at most 20,000.

    ``outlive why`` is made from it, and ``outlive decide`` repeats it (docs/operating/why.md).
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
    """Id of the request or run that the decision belongs to, as logs and events have it."""
    input: str = ""
    """As JSON; empty where it was larger than a record may be, and then only the digest says what it was."""
    output: str = ""
    """What was decided, as JSON; empty where it was larger than a record may be."""
    input_digest: str = ""
    """Digest of the input: the same input has the same."""
