"""VMs: what is wanted of each, and where and how it runs."""

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
from outlive.resources.meta import HOST_LABEL, SHARES_LABEL, KindInfo, ObjectRef, Part, Resource, Writers, limit_entries
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
    """A user's one-time request; ``status.answered`` has the answer with the same id."""

    id: str
    """Names the request: its answer has the same id."""
    verb: RequestVerb
    """The requested action."""
    target: str = ""
    """For ``move`` and ``migrate``: the target host; empty: ``selector`` chooses."""
    force: bool = False
    """For ``start``, ``stop``, ``disable``: also a mirror; ``disable`` stops at once. For ``migrate``: also away from
    home. For ``flush-locks``: also locks of other clients."""
    force_live: bool = False
    """Of a move: only live; it is not stopped for it."""
    with_group: bool = False
    """For a ``move``: the other VMs of its affinity groups on its host follow."""
    device: Annotated[str, Meta(max_length=64)] = ""
    """The device to attach or detach: target of a disk, or MAC address of an interface."""


class Answer(Part, frozen=True, kw_only=True):
    """How the last request was answered."""

    id: str
    """Id of the request that is answered."""
    code: str
    """``accepted``, ``made_permanent``, or why it was refused (docs/design/node-decisions.md#vmrequest)."""
    message: str = ""
    """The rule that refused it, or the soft rules that it breaks."""


CONSOLE_SECRETS: Final = "console-"
"""How names of secrets begin whose values are given to hosts: passwords of controllers are no such."""


class VirtualMachineSpec(Part, frozen=True, kw_only=True):
    """What a user wants of a VM. ``resources`` stay even if the flavor is unknown."""

    display_name: str = ""
    """What its user calls it; empty: it has no other name."""
    project: str = ""
    """The project that it belongs to; empty: none."""
    flavor: str = ""
    """Name of its flavor; empty: it has none."""
    resources: Size = Amounts()
    """``cpu``, ``memory``, and other resources of the inventory (``gpu``)."""
    disk_gib: DiskGib = 0
    """GiB of disk in its flavor; 0: none, or not known."""
    extra_specs: dict[str, str] = {}
    """Extra specs of its flavor, which placement reads."""
    os_type: str = ""
    """Operating system of its image; empty: not known."""
    definition: Annotated[str, Meta(max_length=262_144)] = ""
    """Domain XML of libvirt from its user (docs/reference/definitions.md). ``resources`` (cpu and memory), ``disks``
    and ``ports`` are read from it at each write. Empty: a plain machine of ``resources`` and ``disks``."""
    zone: str = ""
    """The wanted zone; empty: any."""
    server_group: str = ""
    """Its server group, with ``serverGroupPolicy``; empty: none."""
    server_group_policy: Literal["", AffinityPolicy] = ""
    """Policy of the group; soft policies are preferences."""
    affinity: tuple[AffinityRule, ...] = ()
    """Further groups with their policies; at most 16 (docs/how-to/policies.md#affinity)."""
    preferred_hosts: PreferredHosts = PreferredHosts()
    failback: Failback = ""
    """Whether it returns to a preferred host: ``planned``: when an operator asks; ``auto``; empty: ``never``."""
    protection: str = ""
    """Protection level (docs/concepts/coverage.md#levels); empty: by project, flavor, or the default level."""
    restart_priority: int | None = None
    """Order of slots and restarts, larger is earlier. Absent: that of the level."""
    recovery_time_objective_s: float | None = None
    """How soon it is to run again after its host dies. If the checks of its host would take too long, and guard and BMC
    were good within the last minute, there are fewer checks."""
    power_state: Literal["running", "stopped"] = "running"
    """Whether it is to run; ``stopped`` wins over any phase."""
    disks: tuple[str, ...] = ()
    """Ids of its disks, as locks and cuts name them."""
    ports: tuple[str, ...] = ()
    """Ids of its network ports."""
    functions: Annotated[tuple[FunctionNeed, ...], limit_entries(64)] = ()
    """Its network interfaces that are virtual functions of its host's cards."""
    shared_disks: Annotated[tuple[str, ...], Meta(max_length=32)] = ()
    """Ids of disks that other VMs write to as well, each of which lists them too; ``<shareable/>`` in a definition.
    Their content must tolerate several writers (docs/how-to/storage.md#shared)."""
    console_secret: Annotated[str, Meta(pattern=f"^({CONSOLE_SECRETS}.+)?$")] = ""
    """The ``Secret`` with the password of its screens (docs/how-to/secrets.md#screens), whose name begins with
    ``console-``; empty: none."""
    disk_cache: Literal["", "none", "directsync", "writethrough", "writeback", "unsafe"] = ""
    """Cache of its disks on the host: ``none`` (also if empty) or ``directsync``; others are refused. With them the
    host may write after the VM was killed there and runs elsewhere."""
    network_policy: Literal["", "accept-duplicate"] = ""
    """``accept-duplicate``: isolation from its disks is enough, though the old copy may stay on the network."""
    autostart: bool = False
    """Start at the next ``ready`` of its host, if a request stopped it there; ``powerState: stopped`` wins."""
    migration_method: Literal["", "live", "shutdown"] = ""
    """How it moves: ``live``: only live; ``shutdown``: always shut down; empty: live, and shut down after failures."""
    migration_downtime_ms: int | None = None
    """The longest pause of a live move; absent: ``node.downtimeMs``."""
    migration_bandwidth_mib_s: Annotated[int, Meta(ge=0)] | None = None
    """MiB a second for a live move, 0: no limit; absent, as for the next five: as section ``node`` says."""
    migration_auto_converge: bool | None = None
    """Slow it down if it changes memory faster than that is sent."""
    migration_post_copy: bool | None = None
    """It may run at the target before all of its memory is there."""
    migration_multifd: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Parallel connections for its memory; 0: one connection."""
    migration_tls: bool | None = None
    """Whether it is sent encrypted."""
    migration_limit_s: Annotated[float, Meta(ge=0)] | None = None
    """Seconds after which a live move is called off and tried again; 0: only ``node.transferLimit``."""
    selector: HostSelector = ""
    """How a host is chosen for it; empty: as the cluster says."""
    host_limit: tuple[str, ...] = ()
    """Hosts that it may run on; empty: any."""
    start_after: tuple[str, ...] = ()
    """VMs, by name, that must run before it starts (docs/concepts/start-order.md); at most 32."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """What happens if its host dies or does not start it (docs/how-to/policies.md#recovery)."""
    request: Request | None = None
    """The last one-time request of a user; absent: none so far."""

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
    """The host of a VM, and the slot and fence that brought it there."""

    hypervisor: str
    """The host that it is assigned to."""
    slot: ObjectRef | None = None
    """The slot that it came into; absent: it came without one."""
    fence: str = ""
    """The recovery that brought it there, as in ``recovery.fence``; empty: none."""


HOLDERS_LIMIT: Final = 32
"""Entries among the holders of one VM: a host has one or, while it joins anew or moves the VM, a few."""


class Holder(Part, frozen=True, kw_only=True):
    """A host that may be running the VM (see the safety protocol)."""

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
    """State of the domain of this run, as the host reports it."""
    vnc: Vnc | None = None
    """Its screen; absent: none, or it does not run."""
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
    """``status.home`` before the move, restored if the move is aborted."""
    new_home: str = ""
    """``status.home`` once it has arrived."""
    reason: str = ""
    """Why it was aborted, as a code (docs/reference/reasons.md#migration)."""
    message: str = ""
    """Why it was aborted, as a sentence."""
    functions: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Virtual functions of the target, by name or PCI address, reserved until it arrives."""
    listens: str = ""
    """Where the target waits for the state of the guest."""
    declined: str = ""
    """Run of the target that ended before it ever ran: the source may run on."""


class Rejection(Part, frozen=True, kw_only=True):
    """A host's refusal to start a VM that was assigned to it."""

    hypervisor: str
    """The host that refuses."""
    fence: str = ""
    """The recovery whose assignment it refuses; empty: none."""
    reason: str = ""
    """The reason as a code (docs/reference/reasons.md#vm)."""
    message: str = ""
    """Why, in words for people."""
    stays: bool = False
    """No other host could start it either: it stays, and its host tries again."""


class StartOrder(Part, frozen=True, kw_only=True):
    """VMs of ``startAfter`` that a VM's host waits for, or without which it started."""

    hypervisor: str
    """The host that speaks."""
    fence: str = ""
    """Of the assignment that the host speaks of."""
    waits_for: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """VMs that it waits for; empty once it starts."""
    without: Annotated[tuple[str, ...], limit_entries(64)] = ()
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
    """The step as a code."""
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
    """Identity of the recovery: id of the fence, else made of the host's name and epoch."""
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
    """Whether other VMs that had lost their host competed for that slot."""
    moved_there: bool = False
    """It was sent to the target of its move, where room is reserved for it."""
    wanted_there: bool = False
    """Whether a user has asked for it to be moved there."""
    reason: str = ""
    """Why it waits, as a code (docs/reference/reasons.md#waiting)."""
    message: str = ""
    """Where it was sent, or why it waits, as a sentence."""
    remedy: str = ""
    """What helps if it waits; empty: no action is needed."""
    cause: Literal["", "not-started", "asked"] = ""
    """Why it began: its host died (empty); its host did not start it; or a user asked for a VM whose host is not
    there."""
    request: str = ""
    """Id of the last request that had been answered at its begin."""
    relocations: int = 0
    """Hosts that placement has chosen since it last waited."""
    proofs: Annotated[tuple[Proof, ...], limit_entries(1000)] = ()
    """One for every holder that was dropped."""
    host_failures: Annotated[tuple[HostFailure, ...], limit_entries(16)] = ()
    """Hosts that died soon after its start there, the latest last; at most 16."""
    rejected: Annotated[tuple[Rejection, ...], limit_entries(1000)] = ()
    """Hosts that refused to start it in this recovery, and why."""
    steps: Annotated[tuple[RecoveryStep, ...], limit_entries(RECOVERY_STEPS)] = ()
    """At most 32, the first and the last ones."""

    @property
    def unfinished(self) -> bool:
        """Whether something is still to be done."""
        return self.phase in UNFINISHED


class VirtualMachineStatus(Part, frozen=True, kw_only=True):
    """The observed state of a VM."""

    phase: str = ""
    """State as its source has it: ``ACTIVE``, ``SHUTOFF``, ``ERROR``, … for Nova; ``vanished`` if its source no longer
    lists it; ``start``, ``stop``, ``shutdown``, ``restart``, ``migrate``, ``disable``, ``fail`` on hosts with Outlive's
    daemon."""
    reason: str = ""
    """Why it does not run: a code (docs/reference/reasons.md#vm), or the text of another source."""
    message: str = ""
    """``reason`` as a sentence."""
    answered: Answer | None = None
    """The answer to the last request; absent: none was answered."""
    migration: Migration | None = None
    """The present move, or the last one if it was aborted."""
    rejection: Rejection | None = None
    """Of the host that it is assigned to."""
    start_order: StartOrder | None = None
    """The VMs that it waits for, or that were missing at its start."""
    recovery: Recovery | None = None
    """The present or last recovery; absent: none."""
    assigned: Assigned | None = None
    """The only host that may start it; absent: none."""
    home: str = ""
    """Its home, to which ``unmigrate`` returns it; empty: where it is assigned."""
    holders: Annotated[tuple[Holder, ...], limit_entries(HOLDERS_LIMIT)] = ()
    """Hosts that may run it: it starts elsewhere only once each is fenced."""
    source: str = ""
    """Its source, such as an import; empty: created here."""
    observed_at: datetime | None = None
    """When its source last changed."""
    network_hosts: dict[str, tuple[str, ...]] = {}
    """Network that does not reach every host → the hosts that it reaches: the VM runs only there."""


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

    def involved_hosts(self) -> frozenset[str]:
        """The hosts that it is assigned to, held by, or on its way to."""
        return self.bound_hosts().union(holder.hypervisor for holder in self.status.holders)

    def bound_hosts(self) -> frozenset[str]:
        """The hosts that it is assigned to, or on its way to."""
        status = self.status
        assigned = (status.assigned.hypervisor,) if status.assigned is not None else ()
        moving = (status.migration.source, status.migration.target) if status.migration is not None else ()
        return frozenset((*assigned, *moving))

    def related_hosts(self) -> frozenset[str]:
        """``involved_hosts``, its home, and those that it prefers and comes back to by itself."""
        return self.involved_hosts() | self.placed_hosts()

    def placed_hosts(self) -> frozenset[str]:
        """The same but for those that merely hold it: into that list a host enters itself, while the cluster is paused
        also where nobody but itself says that the VM runs there."""
        spec, home = self.spec, self.status.home
        prefers = spec.preferred_hosts.weights if spec.failback in ("planned", "auto") else ()
        return self.bound_hosts().union(prefers, (home,) if home else ())
