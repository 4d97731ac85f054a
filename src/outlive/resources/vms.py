"""VMs, whether each has the slots that it needs (``Coverage``), and their sizes (``Flavor`` and ``FlavorGroup``)."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from outlive.resources.amounts import Amounts, DiskGib, Size
from outlive.resources.consoles import Vnc
from outlive.resources.functions import FunctionNeed
from outlive.resources.hosts import HostSelector
from outlive.resources.memberships import Proof
from outlive.resources.meta import HOST_LABEL, SHARES_LABEL, KindInfo, ObjectRef, Part, Resource, Writers, at_most
from outlive.resources.policies import (
    NOWHERE,
    AffinityPolicy,
    AffinityRule,
    Failback,
    PreferredHosts,
    RecoveryPolicy,
    every_rule,
)

USER_DATA: Final = "outlive.dev/user-data"
"""Annotation with what the metadata server gives the VM's guest as user data."""
RUN_FINALIZER: Final = "outlive.dev/may-run"
"""Set before the first holder is entered, removed once the VM was deleted and nobody holds it: until then its name is
taken (docs/concepts/safety.md#deleting)."""

RequestVerb = Literal[
    "start",
    "stop",
    "shutdown",
    "restart",
    "disable",
    "migrate",
    "unmigrate",
    "move",
    "flush-locks",
    "attach",
    "detach",
]
"""What can be asked for."""


class Request(Part, frozen=True, kw_only=True):
    """What a user asks for once; answered in ``status.answered`` by its id."""

    id: str
    """Names the request: its answer has the same id."""
    verb: RequestVerb
    """What is asked for."""
    target: str = ""
    """Of ``move`` and ``migrate``: the host that it is to go to; empty: one is chosen by ``selector``."""
    force: bool = False
    """Of ``start``, ``stop``, ``disable``: also of a mirror, and ``disable`` stops it at once. Of ``migrate``: also
    away from home. Of ``flush-locks``: also locks of clients that are no host of the cluster."""
    force_live: bool = False
    """Of a move: only live; it is not stopped for it."""
    with_group: bool = False
    """Of a ``move``: the others of its affinity groups on its host follow, so they do not keep it there."""
    device: Annotated[str, Meta(max_length=64)] = ""
    """What is attached or detached: the target of a disk of the definition, or the MAC address of an interface."""


class Answer(Part, frozen=True, kw_only=True):
    """How the last request was answered."""

    id: str
    """Id of the request that is answered."""
    code: str
    """``accepted``, ``made_permanent``, or why it was refused (docs/reference/node-decisions.md#vmrequest)."""
    message: str = ""
    """The rule by which it was refused, or the soft rules that it goes against."""


CONSOLE_SECRETS: Final = "console-"
"""How names of secrets begin whose values are given to hosts: passwords of controllers are no such."""


class VirtualMachineSpec(Part, frozen=True, kw_only=True):
    """What a user wants of a VM. ``resources`` are kept even when the flavor is unknown to this cluster."""

    display_name: str = ""
    """What its user calls it; empty: it has no other name."""
    project: str = ""
    """The project that it belongs to; empty: none."""
    flavor: str = ""
    """Name of its flavor; empty: it has none."""
    resources: Size = Amounts()
    """``cpu``, ``memory``, and whatever else the inventory knows (``gpu``)."""
    disk_gib: DiskGib = 0
    """GiB of disk, as its flavor says; 0: none, or not known."""
    extra_specs: dict[str, str] = {}
    """Extra specs of its flavor, which placement reads."""
    os_type: str = ""
    """Operating system of the guest, as its image says; empty: not known."""
    definition: Annotated[str, Meta(max_length=262_144)] = ""
    """Domain XML of libvirt, as its user wrote it (docs/reference/definitions.md). Where there is one, ``resources``
    (cpu and memory), ``disks`` and ``ports`` are read from it whenever the VM is written. Empty: a plain machine of
    ``resources`` and ``disks``."""
    zone: str = ""
    """The zone that it is to run in; empty: it asks for none."""
    server_group: str = ""
    """The group that its user put it in, with ``serverGroupPolicy``; empty: none."""
    server_group_policy: Literal["", AffinityPolicy] = ""
    """What the group asks for; the soft policies are preferences, the empty one asks for nothing."""
    affinity: tuple[AffinityRule, ...] = ()
    """Further groups that it is in, each with its policy; at most 16
    (docs/operating/policies.md#affinity)."""
    preferred_hosts: PreferredHosts = PreferredHosts()
    failback: Failback = ""
    """Whether it goes back to a host that weighs more once that is ready again: ``planned`` when an operator asks for
    it, ``auto`` by itself; empty: ``never``."""
    protection: str = ""
    """Protection level (docs/concepts/coverage.md#levels); empty: by project, flavor, or the default level."""
    restart_priority: int | None = None
    """Whose slots come first and who restarts first: larger is earlier. Absent: that of the level."""
    recovery_time_objective_s: float | None = None
    """How soon it is to run again after its host dies. Where its host would be looked at for too long before it is
    condemned, and guard and power controller were found good within the last minute, there are fewer looks."""
    power_state: Literal["running", "stopped"] = "running"
    """Whether it is to run, until somebody changes this; ``stopped`` wins over any phase."""
    disks: tuple[str, ...] = ()
    """Ids of its disks, as locks and cuts name them."""
    ports: tuple[str, ...] = ()
    """Ids of its network ports."""
    functions: Annotated[tuple[FunctionNeed, ...], at_most(64)] = ()
    """Those of its network interfaces that are virtual functions of its host's cards."""
    shared_disks: Annotated[tuple[str, ...], Meta(max_length=32)] = ()
    """Ids of those of its disks that other VMs write to as well, each of which names them here too; in a definition
    they are ``<shareable/>``. What is on them has to bear several writers (docs/operating/storage.md#shared)."""
    console_secret: Annotated[str, Meta(pattern=f"^({CONSOLE_SECRETS}.+)?$")] = ""
    """The ``Secret`` whose value is the password of its screens (docs/operating/secrets.md#screens); empty: none. Its
    name begins with ``console-``: no other secret is given to a host."""
    disk_cache: Literal["", "none", "directsync", "writethrough", "writeback", "unsafe"] = ""
    """Of its disks on the host; empty: ``none``. Only ``none`` and ``directsync`` start: the others leave writes to the
    host, which come after the VM was killed there and runs elsewhere."""
    network_policy: Literal["", "accept-duplicate"] = ""
    """``accept-duplicate``: being cut off from its disks suffices, though the old copy may stay on the network."""
    autostart: bool = False
    """Start at the next ``ready`` of its host, if it was stopped there by a request; ``powerState: stopped`` wins."""
    migration_method: Literal["", "live", "shutdown"] = ""
    """How it moves: ``live``: never stopped for it; ``shutdown``: always shut down for it; empty: live, and after
    failures shut down."""
    migration_downtime_ms: int | None = None
    """The longest pause while it moves live; absent: as the daemon is set (``node.downtimeMs``)."""
    migration_bandwidth_mib_s: Annotated[int, Meta(ge=0)] | None = None
    """MiB a second that a live move may use, 0: no limit. This and the next five: absent: as the daemon is set."""
    migration_auto_converge: bool | None = None
    """Whether it is slowed down where it changes its memory faster than that is sent."""
    migration_post_copy: bool | None = None
    """Whether it may run at the target before all of its memory is there."""
    migration_multifd: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Connections that send its memory side by side; 0: one sends everything."""
    migration_tls: bool | None = None
    """Whether it is sent encrypted."""
    migration_limit_s: Annotated[float, Meta(ge=0)] | None = None
    """After so long a live move is called off and tried again; 0: only by ``node.transferLimit``."""
    selector: HostSelector = ""
    """How a host is chosen for it; empty: as the cluster says."""
    host_limit: tuple[str, ...] = ()
    """Hosts that it may run on; empty: any."""
    start_after: tuple[str, ...] = ()
    """VMs, by name, that are to be seen running before it starts (docs/concepts/start-order.md); at most
    32."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """What happens to it when its host dies, or does not start it (docs/operating/policies.md#recovery)."""
    request: Request | None = None
    """The last thing that a user asked for once; absent: nothing so far."""

    @property
    def passed_through(self) -> tuple[FunctionNeed, ...]:
        """Its virtual functions that are devices of the guest itself: with one it is moved while it is down."""
        return tuple(one for one in self.functions if one.kind == "hostdev")

    @property
    def move_method(self) -> Literal["", "live", "shutdown"]:
        """How it moves: as ``migrationMethod`` says, but for what has a function that is passed through."""
        return "shutdown" if self.passed_through else self.migration_method

    @property
    def affinity_rules(self) -> tuple[AffinityRule, ...]:
        """Every group that it is in, the one of ``serverGroup`` first, each once."""
        return every_rule(self.server_group, self.server_group_policy, self.affinity)

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The only hosts that it may run on, by its limit and by strict preferred hosts, by name; empty: any.

        Where the two have no host in common it is ``NOWHERE``.
        """
        limit, preferred = set(self.host_limit), self.preferred_hosts
        if not preferred.strict or not preferred.weights:
            return tuple(sorted(limit))
        strict = set(preferred.weights)
        return tuple(sorted(limit & strict if limit else strict)) or NOWHERE


START_AFTER_LIMIT: Final = 32
"""VMs that one VM may start after."""


class Assigned(Part, frozen=True, kw_only=True):
    """Where a VM is assigned: the host, and the slot and fence that brought it there."""

    hypervisor: str
    """The host that it is assigned to."""
    slot: ObjectRef | None = None
    """The slot that it came into; absent: it came without one."""
    fence: str = ""
    """Identity of the recovery that brought it there, as in ``recovery.fence``; empty: none did."""


HOLDERS_LIMIT: Final = 32
"""Entries among the holders of one VM: a host has one or, while it joins anew or moves the VM, a few."""


class Holder(Part, frozen=True, kw_only=True):
    """One host that may be running the VM (see the safety protocol)."""

    hypervisor: str
    """Name of the host."""
    member_uid: str = ""
    """Uid of the host's Membership under which it runs the VM."""
    epoch: int = 0
    """Epoch of that Membership: once it is proven dead, the VM does not run there."""
    run_id: str = ""
    """Names this run: a domain on a host has the same."""
    role: Literal["", "incoming"] = ""
    """``incoming`` while it only receives a migration."""
    seen: Literal["", "running", "paused"] = ""
    """What the host itself says of the domain of this run."""
    vnc: Vnc | None = None
    """Where its screen is; absent: it has none, or does not run."""
    since: datetime | None = None
    """When its host saw this run begin, or arrive."""


class MigrationPhase(enum.StrEnum):
    """How far a migration is (transitions: ``outlive.node.migration.record``)."""

    REQUESTED = "requested"
    TARGET_READY = "target-ready"
    TRANSFERRING = "transferring"
    STOPPING = "stopping"
    TRANSFERRED = "transferred"
    STOPPED = "stopped"
    ABORTED = "aborted"


class Migration(Part, frozen=True, kw_only=True):
    """A move under way, advanced by compare-and-swap."""

    id: str
    """Names the move: each has another id."""
    source: str
    """The host that it leaves."""
    target: str
    """The host that it goes to."""
    mode: Literal["live", "cold"] = "live"
    """``live``: while it runs; ``cold``: shut down at the source and started at the target."""
    phase: MigrationPhase = MigrationPhase.REQUESTED
    """How far the move is."""
    attempts: int = 0
    """Live transfers that were begun."""
    prior_home: str = ""
    """``status.home`` before the move; it is that again if the move is aborted."""
    new_home: str = ""
    """``status.home`` once it has arrived."""
    reason: str = ""
    """Why it was aborted: a code (``resources.reasons.MigrationReason``)."""
    message: str = ""
    """Why it was aborted, in words for people."""
    functions: Annotated[tuple[str, ...], at_most(64)] = ()
    """Virtual functions of the target, by name or PCI address, that are reserved for it until it arrives."""
    listens: str = ""
    """Where the target waits for the state of the guest, as its hypervisor names it."""
    declined: str = ""
    """Run of the target that was ended before it ever ran: what was sent to it may run on at the source."""


class Rejection(Part, frozen=True, kw_only=True):
    """A host's refusal to start a VM that was assigned to it."""

    hypervisor: str
    """The host that refuses."""
    fence: str = ""
    """Identity of the recovery whose assignment it refuses; empty: none made it."""
    reason: str = ""
    """Why, as a code (``resources.reasons.VmReason``)."""
    message: str = ""
    """Why, in words for people."""
    stays: bool = False
    """No other host could start it either: it stays where it is assigned, and its host tries again."""


class StartOrder(Part, frozen=True, kw_only=True):
    """What a VM's host says of those that it starts after: for whom it waits, or without whom it went ahead."""

    hypervisor: str
    """The host that speaks."""
    fence: str = ""
    """Of the assignment that the host speaks of."""
    waits_for: Annotated[tuple[str, ...], at_most(64)] = ()
    """VMs that it waits for; empty once it starts."""
    without: Annotated[tuple[str, ...], at_most(64)] = ()
    """VMs that it starts without having seen them running."""
    detail: str = ""
    """Why it waits, or why it does not."""
    limit_s: float = 0.0
    """The longest that it waits, from ``since`` on."""
    since: datetime | None = None
    """When it began to wait."""


class RecoveryStep(Part, frozen=True, kw_only=True):
    """One thing that recovery did or found out."""

    at: datetime
    """When it was done or found out."""
    what: str
    """What it was, as a code (``resources.reasons.StepReason``)."""
    message: str = ""
    """What it was, in words for people."""


class RecoveryPhase(enum.StrEnum):
    """How far a recovery is (transitions: ``outlive.recovery.states``)."""

    WAITING = "waiting"
    HELD = "held"
    ASSIGNED = "assigned"
    RECOVERED = "recovered"
    DROPPED = "dropped"


UNFINISHED: Final = frozenset({RecoveryPhase.WAITING, RecoveryPhase.HELD, RecoveryPhase.ASSIGNED})


class HostFailure(Part, frozen=True, kw_only=True):
    """A host that died soon after the VM was started there."""

    host: str
    """Name of the host."""
    epoch: int
    """Of the host's Membership then."""
    at: datetime
    """When that was proven."""


RECOVERY_STEPS: Final = 32
"""Steps that one recovery remembers."""


class Recovery(Part, frozen=True, kw_only=True):
    """How the VM came back after its host died or did not start it, or why it has not yet."""

    fence: str
    """Identity of the recovery: id of the fence by which its host is dead, else made of the host's name and epoch."""
    phase: RecoveryPhase = RecoveryPhase.WAITING
    """How far the recovery is."""
    origin: str = ""
    """The host that died, or that did not start it."""
    slot: str = ""
    """The slot that it came into; empty: none."""
    host: str = ""
    """The host that it was sent to; empty: none yet."""
    promised: bool = False
    """Whether it came into a slot that was promised to it."""
    contested: bool = False
    """Whether other VMs that had lost their host had a claim to that slot as well."""
    moved_there: bool = False
    """Whether it was sent to where it was being moved to, in the room that is kept for it there."""
    wanted_there: bool = False
    """Whether a user has asked for it to be moved there."""
    reason: str = ""
    """Why it is held: a code (``resources.reasons.HoldReason``)."""
    message: str = ""
    """Where it was sent, or why it is held, in words for people."""
    remedy: str = ""
    """What helps where it is held; empty: nothing has to be done."""
    cause: Literal["", "not-started", "asked"] = ""
    """Why it began: its host died; its host did not start it; or a user asked for a VM whose host is not there."""
    request: str = ""
    """Id of the last request that had been answered when it began."""
    relocations: int = 0
    """Hosts that placement has chosen, since it was held last."""
    proofs: Annotated[tuple[Proof, ...], at_most(1000)] = ()
    """One for every holder that was dropped."""
    host_failures: Annotated[tuple[HostFailure, ...], at_most(16)] = ()
    """Hosts that died under it, one soon after the other, the latest last; at most 16."""
    rejected: Annotated[tuple[Rejection, ...], at_most(1000)] = ()
    """Hosts that would not start it in this recovery, and why."""
    steps: Annotated[tuple[RecoveryStep, ...], at_most(RECOVERY_STEPS)] = ()
    """At most 32, the first and the last ones."""

    @property
    def unfinished(self) -> bool:
        """Whether something is still to be done."""
        return self.phase in UNFINISHED


class VirtualMachineStatus(Part, frozen=True, kw_only=True):
    """What is known of a VM."""

    phase: str = ""
    """The word of the source: ``ACTIVE``, ``SHUTOFF``, ``ERROR``, … for Nova; ``vanished`` once its source does not
    list it any more; ``start``, ``stop``, ``shutdown``, ``restart``, ``migrate``, ``disable``, ``fail`` on hosts with
    our daemon."""
    reason: str = ""
    """Why it is not running: a code (``resources.reasons.VmReason``), or what another source says."""
    message: str = ""
    """What ``reason`` says, in words for people."""
    answered: Answer | None = None
    """The answer to the last request; absent: none was answered."""
    migration: Migration | None = None
    """The move under way, or the last one if it was aborted."""
    rejection: Rejection | None = None
    """Of the host that it is assigned to."""
    start_order: StartOrder | None = None
    """Of the host that it is assigned to; absent where it waits for none and none was missing at its start."""
    recovery: Recovery | None = None
    """The recovery under way, or the last one; absent: there was none."""
    assigned: Assigned | None = None
    """Where it is assigned: only this host may start it; absent: it is assigned to none."""
    home: str = ""
    """The host that it belongs to, and that ``unmigrate`` sends it back to; empty: where it is assigned."""
    holders: Annotated[tuple[Holder, ...], at_most(HOLDERS_LIMIT)] = ()
    """Hosts that may be running it: it is started elsewhere only once each of them is fenced."""
    source: str = ""
    """Who lists it, such as an import; empty: somebody created it here."""
    observed_at: datetime | None = None
    """When its source last changed what it says of it."""
    network_hosts: dict[str, tuple[str, ...]] = {}
    """Each of its networks that does not reach every host → the hosts that it reaches: it may run on no others."""


class VirtualMachine(Resource, frozen=True, kw_only=True, tag="VirtualMachine"):
    """A virtual machine, named by its uuid (any DNS name is accepted)."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="virtualmachines",
        short_names=("ovm",),
        writers=Writers(
            fields={
                "spec": ("users", "import"),
                "spec.request": ("users", "import", "recovery"),
                "status.phase": ("daemon", "recovery", "import", "mirror"),
                "status.reason": ("daemon", "recovery"),
                "status.message": ("daemon", "recovery"),
                "status.answered": ("daemon", "recovery"),
                "status.migration": ("daemon", "recovery"),
                "status.rejection": ("daemon", "recovery"),
                "status.startOrder": ("daemon",),
                "status.recovery": ("recovery",),
                "status.assigned": ("daemon", "recovery", "import", "mirror"),
                "status.home": ("daemon", "recovery"),
                "status.holders": ("daemon", "recovery"),
                "status.source": ("import", "mirror"),
                "status.observedAt": ("import", "mirror"),
                "status.networkHosts": ("network",),
                "metadata.finalizers": ("daemon", "recovery"),
                f"metadata.labels.{HOST_LABEL}": ("daemon", "recovery", "import", "mirror"),
                f"metadata.labels.{SHARES_LABEL}": ("users", "import", "daemon"),
            },
            creates=("users", "import", "mirror"),
            deletes=("users", "import", "mirror"),
            labels="except-host",
        ),
        display=".spec.displayName",
        columns=(
            ("Host", ".status.assigned.hypervisor", 0),
            ("State", ".status.phase", 0),
            ("Flavor", ".spec.flavor", 0),
            ("CPU", ".spec.resources.cpu", 0),
            ("Memory", ".spec.resources.memory", 0),
            ("Project", ".spec.project", 1),
            ("Zone", ".spec.zone", 1),
            ("Phase", ".status.phase", 1),
        ),
    )

    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: VirtualMachineStatus = VirtualMachineStatus()

    @property
    def host(self) -> str:
        """The host that it is assigned to; empty where it is assigned to none."""
        return self.status.assigned.hypervisor if self.status.assigned is not None else ""

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The only hosts that it may run on, by its spec and by where its networks are, by name; empty: any.

        Where these have no host in common it is ``NOWHERE``.
        """
        limits = [set(one) for one in (self.spec.allowed_hosts,) if one]
        limits += [set(hosts) for hosts in self.status.network_hosts.values()]
        return (tuple(sorted(set.intersection(*limits))) or NOWHERE) if limits else ()

    @property
    def marked(self) -> VirtualMachine:
        """With ``SHARES_LABEL`` where it shares disks, and without where it does not."""
        labels = {key: value for key, value in self.metadata.labels.items() if key != SHARES_LABEL}
        if self.spec.shared_disks:
            labels[SHARES_LABEL] = "true"
        if labels == self.metadata.labels:
            return self
        return msgspec.structs.replace(self, metadata=msgspec.structs.replace(self.metadata, labels=labels))

    @property
    def guarded(self) -> bool:
        """Whether deleting it only marks it, for as long as a host may run it."""
        return RUN_FINALIZER in self.metadata.finalizers

    def hosts(self) -> frozenset[str]:
        """The hosts that it is assigned to, held by, or on its way to."""
        return self.bound_hosts().union(holder.hypervisor for holder in self.status.holders)

    def bound_hosts(self) -> frozenset[str]:
        """The hosts that it is assigned to, or on its way to."""
        status = self.status
        assigned = (status.assigned.hypervisor,) if status.assigned is not None else ()
        moving = (status.migration.source, status.migration.target) if status.migration is not None else ()
        return frozenset((*assigned, *moving))

    def related_hosts(self) -> frozenset[str]:
        """``hosts``, its home, and those that it prefers and comes back to by itself."""
        return self.hosts() | self.placed_hosts()

    def placed_hosts(self) -> frozenset[str]:
        """The same but for those that merely hold it: into that list a host enters itself, while the cluster is paused
        also where nobody but itself says that the VM runs there."""
        spec, home = self.spec, self.status.home
        prefers = spec.preferred_hosts.weights if spec.failback in ("planned", "auto") else ()
        return self.bound_hosts().union(prefers, (home,) if home else ())


class CoveredBy(enum.StrEnum):
    """What becomes of a covered VM when its host dies."""

    RESERVED = "reserved"
    """Its slots are kept free; Outlive neither fences its host nor restarts the VM: the system that manages it does."""
    RECOVERABLE = "recoverable"
    """Outlive proves the host dead and restarts the VM in a slot."""
    UNPROVEN = "unproven"
    """As ``recoverable``, but nothing is ready that would prove its host dead: neither a BMC that was rehearsed nor an
    armed guard. The VM would wait until a person says that the host is off."""

    @property
    def text(self) -> str:
        """The same in words."""
        return {
            CoveredBy.RESERVED: "reserved only",
            CoveredBy.RECOVERABLE: "reserved and recoverable",
            CoveredBy.UNPROVEN: "recoverable, but its host cannot be proven dead",
        }[self]


class CoverageStatus(Part, frozen=True, kw_only=True):
    """Whether one VM has its slots, as the failover controller last saw it."""

    display_name: str = ""
    """Of the VM; empty where it has none of its own."""
    required: int
    """How many slots the VM needs; 0: it is not protected."""
    slots: tuple[str, ...] = ()
    """Names of the slots that count, in name order."""
    covered: bool
    """Whether it has as many slots as it needs."""
    covered_by: CoveredBy | None = None
    """By what, of a VM that needs slots and has them, as of ``changedAt``."""
    reason: str = ""
    """Why it is not covered: a code, then values in ``message``."""
    message: str = ""
    """Why it is not covered, in words for people."""
    remedy: str = ""
    """What helps; empty: nothing has to be done."""
    host: str = ""
    """The host that the VM runs on as far as failover knows; empty: none."""
    also_needs: Amounts = Amounts()
    """What the VM needs besides cpu and memory, which no slot holds."""
    changed_at: datetime | None = None
    """When this was last another one."""


class Coverage(Resource, frozen=True, kw_only=True, tag="Coverage"):
    """``Coverage/<vm>``: whether the VM has all the slots it needs. One document, written by failover alone."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="coverages",
        halves=False,
        writers=Writers(
            fields={"status": ("failover",)},
            creates=("failover",),
            deletes=("failover",),
            labels="refused",
        ),
        display=".status.displayName",
        columns=(
            ("Covered", ".status.covered", 0),
            ("By", ".status.coveredBy", 0),
            ("Required", ".status.required", 0),
            ("Slots", ".status.slots", 0),
            ("Reason", ".status.reason", 0),
            ("Host", ".status.host", 1),
            ("Remedy", ".status.remedy", 1),
        ),
    )

    status: CoverageStatus


class FlavorSpec(Part, frozen=True, kw_only=True):
    """A VM size. The flavor's own name is a field, because a Nova flavor name need not be a DNS name."""

    flavor_name: str
    """Nova's name of the flavor."""
    resources: Size = Amounts()
    """``cpu``, ``memory``, and whatever else a VM of this size has (``gpu``)."""
    disk_gib: DiskGib = 0
    """GiB of disk; with Nova, of the root disk."""
    ephemeral_gib: int = 0
    """GiB of further disks that go with the VM."""
    extra_specs: dict[str, str] = {}
    """Extra specs, as Nova has them; placement reads them."""


class Flavor(Resource, frozen=True, kw_only=True, tag="Flavor"):
    """A VM size."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavors",
        writers=Writers(
            fields={"spec": ("users", "import", "mirror")},
            creates=("users", "import", "mirror"),
            deletes=("users", "import", "mirror"),
        ),
        columns=(
            ("Flavor", ".spec.flavorName", 0),
            ("CPU", ".spec.resources.cpu", 0),
            ("Memory", ".spec.resources.memory", 0),
        ),
    )

    spec: FlavorSpec


class GroupFlavor(Part, frozen=True, kw_only=True):
    """A flavor as its group records it; ``memory_mb`` is MiB despite the inherited name."""

    name: str
    """Nova's name of the flavor."""
    vcpus: int
    """Virtual processors that such a VM has."""
    memory_mb: int = 0
    """MiB of memory that such a VM has."""
    disk_gb: int = 0
    """GiB of disk, as ``diskGib`` of the flavor."""
    ephemeral_gb: int = 0
    """GiB of further disks that go with the VM."""
    extra_specs: dict[str, str] = {}
    """Extra specs of the flavor."""


class FlavorGroupSpec(Part, frozen=True, kw_only=True):
    """A set of sizes that share hardware, traits and a RAM/CPU ratio rule; flavors largest first."""

    group_name: str
    """Name of the group, as extra specs of its flavors give it."""
    flavors: tuple[GroupFlavor, ...] = ()
    """The flavors of the group, the largest first."""
    largest_flavor: GroupFlavor
    """The largest flavor of the group."""
    smallest_flavor: GroupFlavor
    """The smallest flavor of the group: units of memory and capacity are counted in it."""
    ram_core_ratio: int | None = None
    """MiB of memory for each virtual processor, where that is the same in all flavors."""
    ram_core_ratio_min: int | None = None
    """The smallest such ratio, where flavors differ."""
    ram_core_ratio_max: int | None = None
    """The largest such ratio, where flavors differ."""


class FlavorGroup(Resource, frozen=True, kw_only=True, tag="FlavorGroup"):
    """A flavor group, derived from the flavors."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavorgroups",
        writers=Writers(
            fields={"spec": ("placement", "mirror")}, creates=("placement", "mirror"), deletes=("placement", "mirror")
        ),
        columns=(
            ("Group", ".spec.groupName", 0),
            ("Largest", ".spec.largestFlavor.name", 0),
            ("Smallest", ".spec.smallestFlavor.name", 0),
            ("Ratio", ".spec.ramCoreRatio", 0),
        ),
    )

    spec: FlavorGroupSpec
