"""Hosts: ``Hypervisor`` (what is wanted and known of one) and ``HypervisorUsage`` (ever-changing figures)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from outlive.resources.amounts import Amounts
from outlive.resources.functions import (
    CARDS_LIMIT,
    FUNCTIONS_LIMIT,
    FreeFunction,
    PhysicalFunction,
    VirtualFunction,
    VirtualFunctionSettings,
)
from outlive.resources.meta import Condition, KindInfo, Part, Resource, Writers, at_most, condition, lasts

WORKING_CONDITIONS: Final = (("Ready", "True"), ("HypervisorDisabled", "False"), ("Terminating", "False"))
"""Conditions of hosts on which VMs can be brought up; an absent one rules nothing out."""


READY: Final = "Ready"
"""Condition of a host: that it runs its VMs. Its daemon writes it, and the server while it does not hear of it."""
OBSERVED: Final = {"silent": "HostSilent", "condemned": "HostCondemned", "dead": "HostDead"}
"""Reasons of that condition where the server wrote it, by what it saw …"""
HEARD: Final = "HostRenews"
"""… and the one with which it takes that back, until the daemon writes its own."""


def observed_condition(host: Hypervisor) -> Condition | None:
    """What the server wrote of a host that it does not hear of; ``None``: nothing."""
    found = condition(host.status.conditions, READY)
    return found if found is not None and found.reason in OBSERVED.values() and found.status != "True" else None


def free_functions(host: Hypervisor) -> tuple[FreeFunction, ...]:
    """The virtual functions of the host, and who has each of them or gets it; without those that nobody has and that
    their card does not show."""
    return tuple(
        FreeFunction(name=one.name, pci=one.pci, owner=owner)
        for one in host.status.virtual_functions
        if (owner := one.used_by or one.reserved_by) or not one.missing
    )


def bad_condition(host: Hypervisor) -> str:
    """The first condition by which nobody can be brought up there, ``Ready=False``; empty where all are well.

    What the server observed is none of them: silence may pass, and slots are not moved because of it
    (docs/reference/failover-operation.md#silent-hosts). A host that is proven dead is lost, which is said otherwise.
    """
    for kind, wanted in WORKING_CONDITIONS:
        found = condition(host.status.conditions, kind)
        if found is not None and found.status != wanted and found is not observed_condition(host):
            return f"{kind}={found.status}"
    return ""


def unschedulable(host: Hypervisor) -> str:
    """Why no slot there can be used, to follow the host's name; empty where they can."""
    if why := host.closed():
        return why
    why = bad_condition(host)
    return f"has condition {why}" if why else ""


def is_only_emptied(host: Hypervisor) -> bool:
    """Whether it takes no VM because it is to be emptied, and for nothing else: what is bound for it still starts."""
    for_good = host.status.lost or host.status.quarantine is not None or host.spec.maintenance
    return bool(host.closed()) and not (for_good or bad_condition(host))


def out_of_service(host: Hypervisor) -> str:
    """Why no VM may be put onto it now, to follow its name; empty where one may whose storage it reaches."""
    if host.spec.maintenance and not host.closed():
        return f"is in maintenance ({host.spec.maintenance})"
    return unschedulable(host)


def lost_places(host: Hypervisor) -> tuple[str, ...]:
    """Places of storage that it does not reach: VMs with disks in them are kept off it. The empty place is all storage
    (a daemon of an older version does not name any)."""
    lost = host.status.storage_lost
    if lost is None or not lost.unreached:
        return ()
    return lost.places or ("",)


Management = Literal["nova", "node", "kubevirt"]
HostSelector = Literal["", "mem", "memprov", "memfree", "load", "vcpus", "vms"]
"""How a host is chosen for a VM that leaves another one."""
ShutdownPolicy = Literal["", "freeze", "failover", "migrate"]
Maintenance = Literal["", "manual", "auto", "ha", "termination"]
DomainState = Literal["", "ready", "flush", "flushed", "unflush"]
TAKES_NOTHING: Final[frozenset[DomainState]] = frozenset({"flush", "flushed"})
"""Domain states of hosts that take no VMs."""


class FencingSpec(Part, frozen=True, kw_only=True):
    """How this host is declared dead."""

    driver: str = ""
    """Of its power controller: ``ipmi``, ``redfish``, ``command``; empty or ``none``: it has none."""
    address: str = ""
    """Of its power controller, as the driver wants it."""
    options: dict[str, str] = {}
    """Of the driver (docs/operating/controllers.md)."""
    secret: str = ""
    """Name of the ``Secret`` with the controller's user name and password."""
    system_uuid: str = ""
    """What the power controller must say its system is, before it is believed."""
    armed: bool = False
    """Whether the guard is to be armed."""
    profile: Literal["", "fast", "steady"] = ""
    """Timing of this host; empty: as the cluster says."""
    proofs: int = 0
    """Kinds of proof that must agree; 0: as the cluster says."""
    answer_limit_s: float | None = None
    """How long one answer of its power controller may take; absent: as the cluster says, else as rehearsals found."""
    maintenance: bool = False
    """This host is not condemned."""
    maintenance_until: datetime | None = None
    """When maintenance ends by itself; absent: when somebody ends it."""
    power_maintenance: bool = False
    """Somebody works on its power controller: it is sent no command and proves nothing; other kinds of proof go on."""
    power_maintenance_until: datetime | None = None
    """When maintenance of the power controller ends by itself; absent: when somebody ends it."""
    operator_proof: str = ""
    """``<fence>|<name>|<reason>``: somebody asserts that the host is off (docs/operating/fencing.md)."""
    trust_again: str = ""
    """An operator changes it to have distrusted kinds of proof trusted again (``outlive host trust``)."""
    requested: str = ""
    """``<epoch>@<uid>|<name>|<reason>``: somebody asks for this host to be fenced, silent or not; the epoch is of the
    Membership of that uid."""

    def in_maintenance(self, now: float) -> bool:
        """Whether this host is in maintenance by its own setting: it is not condemned, and no fault of it is raised."""
        return lasts(self.maintenance, self.maintenance_until, now)

    def power_in_maintenance(self, now: float) -> bool:
        """Whether somebody works on its power controller, which gets no command and proves nothing."""
        return lasts(self.power_maintenance, self.power_maintenance_until, now)


class HypervisorSpec(Part, frozen=True, kw_only=True):
    """What operators want of a host."""

    management: Management = "nova"
    """Who starts and stops its VMs: ``node`` the daemon of Outlive, ``nova`` or ``kubevirt`` another system."""
    mode: Literal["coordinator", "hypervisor"] = "hypervisor"
    """``coordinator``: its daemon watches other hosts and fences them as well."""
    custom_traits: tuple[str, ...] = ()
    """Traits that operators give it; they count beside ``status.traits``."""
    allowed_projects: tuple[str, ...] = ()
    """Projects that may run here; empty means everybody."""
    groups: tuple[str, ...] = ()
    """Names of groups that another system has the host in; Outlive only shows them."""
    overcommit: dict[str, float] = {}
    """Resource name → ratio of at least 1.0."""
    high_availability: bool | None = None
    """Whether slots may be there; only ``false`` keeps them away."""
    maintenance: Maintenance = ""
    """Why somebody works on the host: while it is not empty, recovery and moves put no VM there, and commitments no
    slot; ``filter_maintenance`` drops the host with ``manual`` and ``termination`` alone."""
    fencing: FencingSpec = FencingSpec()
    """How this host is declared dead, and its maintenance."""
    shutdown_policy: ShutdownPolicy = ""
    """What becomes of its VMs when it goes down in good order: they wait for it (``freeze``), are recovered elsewhere
    (``failover``), or leave before (``migrate``); empty: as the cluster says."""
    drain: bool = False
    """Whether the host is to be emptied, and takes no new VMs."""
    chassis: str = ""
    """Name of its chassis in OVN; empty: the one of the host's name, or whose host name it is."""
    virtual_functions: dict[str, VirtualFunctionSettings] = {}
    """Virtual function → how its daemon programs it, at every start and change; one that is absent stays as it is."""
    quarantine_release: Annotated[str, Meta(max_length=200)] = ""
    """An operator changes it to let the host out of quarantine (``outlive host release``)."""


class Instance(Part, frozen=True, kw_only=True):
    """A VM that the host reports."""

    id: str
    """Name of its ``VirtualMachine``, with Nova the server's uuid."""
    name: str = ""
    """What its user calls it."""
    active: bool = True
    """Whether it runs; false: it is stopped or paused."""


class Aggregate(Part, frozen=True, kw_only=True):
    """A host aggregate of Nova."""

    name: str
    """What Nova's operators call the aggregate."""
    uuid: str = ""
    """By which placement requests name the aggregate; empty: not known."""
    metadata: dict[str, str] = {}
    """Properties of the aggregate, as Nova has them."""


class Capabilities(Part, frozen=True, kw_only=True):
    """What the host's machine is, and what it runs under its daemon."""

    cpu_arch: str = ""
    """Architecture of its processors, such as ``x86_64``; empty: not known."""
    cpus: int = 0
    """Processors as its kernel counts them; 0: not known."""
    kernel: str = ""
    """Release of its kernel; empty: not known."""
    os: str = ""
    """The name that the distribution gives itself."""


class DomainCapabilities(Part, frozen=True, kw_only=True):
    """What the host's hypervisor can do, for live migration."""

    hypervisor_type: str = ""
    """As libvirt names it: ``kvm`` or ``ch``."""
    supported_cpu_modes: Annotated[tuple[str, ...], at_most(2000)] = ()
    """Modes of virtual processors that it offers, such as ``host-passthrough``."""
    supported_features: Annotated[tuple[str, ...], at_most(2000)] = ()
    """Features of the hypervisor that VMs may ask for."""
    supported_devices: Annotated[tuple[str, ...], at_most(2000)] = ()
    """Kinds of virtual devices that it offers."""


class Spared(Part, frozen=True, kw_only=True):
    """A silence for which a host would have been condemned, had it not been in maintenance."""

    at: datetime
    """When it would have been condemned."""
    epoch: int = 0
    """``record.epoch`` of its Membership at that silence."""
    seq: int = 0
    """``record.seq`` of its Membership at that silence: one entry for one silence."""
    why: str = ""
    """For how long it was silent, and what else would have kept it from being fenced."""
    under: str = ""
    """Whose maintenance it was."""


class Degrading(Part, frozen=True, kw_only=True):
    """A host that gets slow, as its own daemon scores it, and what becomes of its VMs (docs/operating/degrading.md)."""

    since: datetime
    """When the host began to degrade."""
    causes: Annotated[tuple[str, ...], at_most(64)] = ()
    """What says so: ``keepalive``, ``store``, ``disk``, ``hypervisor``, ``storage``."""
    score: int = 0
    """Of the worst of them when this was written, 0 to 100."""
    leaving: Literal["waits", "leaves", "stays"] = "waits"
    """Whether its VMs leave."""
    why: str = ""
    """Why they do not, a code such as ``common_cause``; empty while they leave."""


class StorageLoss(Part, frozen=True, kw_only=True):
    """That storage does not serve VMs of a host any more, or did not when they left it, as its own daemon sees it
    (docs/operating/degrading.md#storage)."""

    since: datetime
    """When storage was first seen not to serve them."""
    unreached: bool = False
    """Whether the host itself does not reach the storage of some of them, or of VMs that have left it since."""
    places: tuple[str, ...] = ()
    """The places of storage that it does not reach, such as ``rbd:vms``; ``rbd:`` means all of that kind."""
    vms: int = 0
    """How many of them are concerned."""
    why: str = ""
    """What the first of them lacks."""
    then: str = ""
    """Why nothing is done about it, a code such as ``common_cause``; empty while something is."""


class HostDeath(Part, frozen=True, kw_only=True):
    """One death of a host (docs/operating/fencing.md#quarantine)."""

    at: datetime
    """When it was proven."""
    uid: str
    """Uid of its Membership then."""
    epoch: int
    """The epoch of that Membership that ended."""
    proof: str
    """By what kind of proof it was proven."""
    counts: bool = True
    """Whether it counts for its quarantine: not where most hosts died at once, or somebody worked on it."""


class Quarantine(Part, frozen=True, kw_only=True):
    """That a host has died too often: it takes no VM until somebody, or its time, lets it out."""

    since: datetime
    """When the quarantine began."""
    until: datetime
    """When it ends by itself."""
    deaths: int
    """Deaths that count, within ``flapWindowS`` of the cluster's fencing policy."""
    word: str = ""
    """``spec.quarantineRelease`` when it began; another one ends it."""


class HostSchema(Part, frozen=True, kw_only=True):
    """Which storage schemas the daemon of a host knows (docs/operating/upgrades.md)."""

    active: int = 0
    """The one by which it works; 0: it does not say."""
    latest: int = 0
    """The newest one that its installed version knows; 0: it does not say, which means 1."""


class HypervisorStatus(Part, frozen=True, kw_only=True):
    """What is known of a host."""

    capacity: Amounts | None = None
    """What the machine has for VMs, before overcommit; absent: not known."""
    effective_capacity: Amounts | None = None
    """Capacity times overcommit, rounded down; absent means capacity."""
    allocation: Amounts | None = None
    """Sum over the VMs that run here; absent means the figure is missing."""
    instances: tuple[Instance, ...] = ()
    """VMs that the host reports, running or not."""
    num_instances: int = 0
    """How many VMs the host reports."""
    aggregates: Annotated[tuple[Aggregate, ...], at_most(2000)] = ()
    """Nova's host aggregates that it is in."""
    traits: Annotated[tuple[str, ...], at_most(2000)] = ()
    """Traits that its source found on it, such as features of its processors."""
    capabilities: Capabilities = Capabilities()
    domain_capabilities: DomainCapabilities = DomainCapabilities()
    conditions: Annotated[tuple[Condition, ...], at_most(64)] = ()
    """``Ready`` and others; a host that is not ``Ready``, is ``HypervisorDisabled`` or ``Terminating`` takes no VMs."""
    evicted: bool = False
    """Whether the system that manages it says that its VMs have left; Outlive only shows it."""
    domain_state: DomainState = ""
    """Whether it takes VMs, for hosts with our daemon; other hosts have none."""
    lost: str = ""
    """The fence that proved this host dead; empty once it is back. A lost host takes nothing and holds nothing."""
    deaths: Annotated[tuple[HostDeath, ...], at_most(16)] = ()
    """Those within ``flapWindowS`` of the cluster's fencing policy, newest last; at most 16."""
    quarantine: Quarantine | None = None
    """Absent: it is in none."""
    storage_address: str = ""
    """Of its clients on the storage network, as locks on disks name it."""
    addresses: Annotated[dict[str, str], at_most(64)] = {}
    """Its addresses by network, as its configuration names them: live migration goes to ``cluster``."""
    chassis: str | None = None
    """Name of its chassis in OVN, as its own Open vSwitch has it; empty: the host runs no OVN; absent: it does not
    say."""
    networks: Annotated[dict[str, str], at_most(4096)] | None = None
    """Bridged and managed networks → why the host has not made them; empty: it has. Absent: it makes none."""
    bridges: Annotated[dict[str, str], at_most(8)] = {}
    """System network → the bridge that the host is on it by; none where it makes none."""
    rehearsed: str = ""
    """Result of the last rehearsal of its power controller: ``ok``, or what was wrong; empty: never rehearsed."""
    rehearsed_seq: int = 0
    """``record.seq`` of its Membership at the last good rehearsal that it lived on after; 0: none."""
    power_answer_s: float | None = None
    """The slowest of the last ten good answers of its power controller to rehearsals, in whole seconds; absent: none
    was measured."""
    key_ids: Annotated[tuple[str, ...], at_most(64)] = ()
    """Ids of the cluster's keys that it has, the newest first; only coordinators have any."""
    authorities: Annotated[tuple[str, ...], at_most(64)] = ()
    """Fingerprints of the server's own authorities that it believes; none where it has pinned none."""
    recovery_time_objective_s: float | None = None
    """The shortest of its VMs' objectives; absent: none has one, or the host does not say."""
    spared: Annotated[tuple[Spared, ...], at_most(16)] = ()
    """What this host would have been condemned for but for maintenance; the latest eight, newest last."""
    degrading: Degrading | None = None
    """Absent: it does well, or nobody says."""
    storage_lost: StorageLoss | None = None
    """Absent: storage serves all VMs here, or nobody says."""
    physical_functions: Annotated[tuple[PhysicalFunction, ...], at_most(CARDS_LIMIT)] = ()
    """Cards that its configuration divides into virtual functions."""
    virtual_functions: Annotated[tuple[VirtualFunction, ...], at_most(FUNCTIONS_LIMIT)] = ()
    """Virtual functions of these cards, and the VMs that have them."""
    source: str = ""
    """Where these facts come from: ``import``, ``nova``, ``kvm.cloud.sap``, ``daemon``."""
    source_name: str = ""
    """What the source calls it, where that cannot be the name of an object: with upper case, ``_`` or other signs."""
    version: str = ""
    """Version of its daemon; empty: it has none of ours."""
    schema: HostSchema = HostSchema()
    observed_at: datetime | None = None
    """When these facts last changed; absent: never."""


_IMPORTED: Final = (
    "status.capacity",
    "status.effectiveCapacity",
    "status.allocation",
    "status.instances",
    "status.numInstances",
    "status.aggregates",
    "status.traits",
    "status.capabilities.cpuArch",
    "status.domainCapabilities.hypervisorType",
    "status.conditions",
    "status.source",
    "status.sourceName",
    "status.observedAt",
)
"""What an import says of a host: nothing that the safety protocol reads."""
_MIRRORED: Final = ("spec.customTraits", "spec.allowedProjects", "spec.groups", "spec.highAvailability")
"""What a mirrored host's own object says is wanted of it."""
_OF_ITS_DAEMON: Final = (
    "status.capabilities",
    "status.domainCapabilities",
    "status.evicted",
    "status.domainState",
    "status.chassis",
    "status.physicalFunctions",
    "status.virtualFunctions",
    "status.storageAddress",
    "status.addresses",
    "status.networks",
    "status.bridges",
    "status.keyIds",
    "status.recoveryTimeObjectiveS",
    "status.degrading",
    "status.storageLost",
    "status.authorities",
    "status.version",
    "status.schema",
)
"""What only the daemon of the host says of it."""


class Hypervisor(Resource, frozen=True, kw_only=True, tag="Hypervisor"):
    """A host: a machine that runs VMs. Zone and failure domains are labels."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="hypervisors",
        short_names=("ohv",),
        writers=Writers(
            fields={
                "spec": ("users", "import"),
                "spec.overcommit": ("users", "import", "placement", "mirror"),
                **dict.fromkeys(_MIRRORED, ("users", "import", "mirror")),
                # to whom a secret is sent, and who is believed that the host is off
                "spec.fencing.driver": ("admin",),
                "spec.fencing.address": ("admin",),
                "spec.fencing.options": ("admin",),
                "spec.fencing.secret": ("admin",),
                "spec.drain": ("users", "import", "daemon"),
                **dict.fromkeys(_IMPORTED, ("daemon", "mirror", "import")),
                **dict.fromkeys(_OF_ITS_DAEMON, ("daemon",)),
                "status.conditions": ("daemon", "mirror", "import", "recovery"),
                "status.evicted": ("daemon", "mirror"),
                "status.lost": ("recovery",),
                "status.deaths": ("recovery",),
                "status.quarantine": ("recovery",),
                "status.rehearsed": ("fencer",),
                "status.rehearsedSeq": ("fencer",),
                "status.powerAnswerS": ("fencer",),
                "status.spared": ("fencer",),
            },
            creates=("users", "import", "mirror", "daemon"),
            deletes=("users", "import", "mirror"),
            given={  # a host registers itself where nobody has
                "metadata.labels": ("daemon",),
                "spec.management": ("daemon",),
                "spec.mode": ("daemon",),
            },
        ),
        columns=(
            ("Zone", ".metadata.labels.topology\\.kubernetes\\.io/zone", 0),
            ("State", '.status.conditions[?(@.type=="Ready")].reason', 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("VMs", ".status.numInstances", 0),
            ("CPU", ".status.capacity.cpu", 0),
            ("Memory", ".status.capacity.memory", 0),
            ("Used CPU", ".status.allocation.cpu", 1),
            ("Used Memory", ".status.allocation.memory", 1),
            ("Management", ".spec.management", 1),
            ("Maintenance", ".spec.maintenance", 1),
        ),
    )

    spec: HypervisorSpec = HypervisorSpec()
    status: HypervisorStatus = HypervisorStatus()

    def closed(self) -> str:
        """Why it takes no VM, to follow its name; empty where it takes some."""
        if self.status.lost:
            return f"was lost by fence {self.status.lost} and has not come back"
        if self.status.quarantine is not None:
            return f"is in quarantine: it died {self.status.quarantine.deaths} times"
        if self.status.domain_state in TAKES_NOTHING:
            return "is being emptied"
        return "is to be emptied" if self.spec.drain else ""

    def effective_capacity(self) -> Amounts | None:
        """Effective capacity, else plain capacity, else unknown."""
        return self.status.effective_capacity if self.status.effective_capacity is not None else self.status.capacity


class HypervisorUsage(Resource, frozen=True, kw_only=True, tag="HypervisorUsage"):
    """Measured figures of a host, written every interval and watched by few. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="hypervisorusages",
        halves=False,
        writers=Writers(fields={"usage": ("daemon",)}, creates=("daemon",), labels="refused"),
        columns=(("Load", ".usage.load", 0), ("Memory", ".usage.used.memory", 0), ("VMs", ".usage.running", 0)),
    )

    usage: HostUsage


LOG_LINES: Final = 1000
"""Lines of a host's log in the store at most."""
LOG_BYTES: Final = 65_536
"""All lines of one together, in UTF-8."""


class HostLog(Resource, frozen=True, kw_only=True, tag="HostLog"):
    """The last lines that the daemon of a host has logged, where it is set to (``node.logLines``). One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="hostlogs",
        halves=False,
        writers=Writers(fields={"": ("daemon",)}, creates=("daemon",), labels="refused"),
        columns=(("Written", ".writtenAt", 0), ("Lines", ".last", 0)),
    )

    process: str
    """The daemon's process that wrote it."""
    last: int = 0
    """Lines that this process has logged, those that are not kept as well."""
    lines: Annotated[tuple[str, ...], Meta(max_length=LOG_LINES)] = ()
    """The last ones, also of processes before this one."""
    written_at: datetime
    """When it was written last, by the host's clock."""


class InterfaceRates(Part, frozen=True, kw_only=True):
    """What a card received and sent each second, and its state."""

    received_bits: int = 0
    """Bits a second that arrived."""
    received_packets: int = 0
    """Packets a second that arrived."""
    sent_bits: int = 0
    """Bits a second that left."""
    sent_packets: int = 0
    """Packets a second that left."""
    total_bits: int = 0
    """Both directions together."""
    total_packets: int = 0
    """Both directions together."""
    speed_mbps: int = 0
    """Megabits a second of the cable; 0: the card does not say."""
    state: str = ""
    """``up``, ``down`` and others, as the kernel says."""


class HostUsage(Part, frozen=True, kw_only=True):
    """One sample of a host's figures."""

    sampled_at: datetime | None = None
    """When the figures were taken, by the host's clock."""
    used: Amounts = Amounts()
    """Of the machine, by whatever runs on it; where nobody measures that, what its VMs are allocated."""
    allocated: Amounts = Amounts()
    """Of the VMs that run here."""
    provisioned: Amounts = Amounts()
    """Of the VMs that run here or are assigned here, whatever their state."""
    load: float = 0.0
    """Busy cores, as the kernel averages them over the last minute."""
    running: int = 0
    """VMs that run here, without those that are paused."""
    present: tuple[str, ...] | None = None
    """VMs with a domain here in whatever state, or about to have one; absent: the hypervisor did not say."""
    guests: dict[str, Amounts] = {}
    """What each VM that runs here uses: processors over the last interval, memory of its process now, and bytes a
    second that its disks (``diskRead``, ``diskWritten``) and interfaces (``netReceived``, ``netSent``) moved."""
    interfaces: Annotated[dict[str, InterfaceRates], at_most(256)] = {}
    """What each card of a host that makes its own links received and sent over the last interval."""
    stale: tuple[str, ...] = ()
    """Who did not bring figures in time, ``domains``, ``guests`` or ``machine``: theirs are of an earlier interval."""
    scores: dict[str, int] = {}
    """How well the host does: ``keepalive``, ``store``, ``disk``, ``hypervisor``, ``storage``, each 0 to 100; without
    those that nobody measured."""
    slopes: dict[str, float] = {}
    """How they change, in points a minute."""
    reached: tuple[str, ...] = ()
    """Of ``status.lostPlaces`` of the ``Cluster``, those that this host reaches."""
