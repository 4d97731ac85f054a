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
from outlive.resources.meta import (
    Condition,
    KindInfo,
    Part,
    Resource,
    Writers,
    find_condition,
    is_in_effect,
    limit_entries,
)

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
    found = find_condition(host.status.conditions, READY)
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
        found = find_condition(host.status.conditions, kind)
        if found is not None and found.status != wanted and found is not observed_condition(host):
            return f"{kind}={found.status}"
    return ""


def unschedulable_reason(host: Hypervisor) -> str:
    """Why no slot there can be used, to follow the host's name; empty where they can."""
    if why := host.closed_reason():
        return why
    why = bad_condition(host)
    return f"has condition {why}" if why else ""


def is_only_emptied(host: Hypervisor) -> bool:
    """Whether it takes no VM because it is to be emptied, and for nothing else: what is bound for it still starts."""
    for_good = host.status.lost or host.status.quarantine is not None or host.spec.maintenance
    return bool(host.closed_reason()) and not (for_good or bad_condition(host))


def explain_out_of_service(host: Hypervisor) -> str:
    """Why no VM may be put onto it now, to follow its name; empty where one may whose storage it reaches."""
    if host.spec.maintenance and not host.closed_reason():
        return f"is in maintenance ({host.spec.maintenance})"
    return unschedulable_reason(host)


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
    """Driver of its BMC: ``ipmi``, ``redfish``, ``command``; empty or ``none``: it has none."""
    address: str = ""
    """Address of its BMC, in the form of the driver."""
    options: dict[str, str] = {}
    """Of the driver (docs/how-to/bmc.md)."""
    secret: str = ""
    """Name of the ``Secret`` with the controller's user name and password."""
    system_uuid: str = ""
    """The system UUID that the BMC must report to be trusted."""
    armed: bool = False
    """Whether the guard is to be armed."""
    profile: Literal["", "fast", "steady"] = ""
    """Timing of this host; empty: as the cluster says."""
    proofs: int = 0
    """Kinds of proof that must agree; 0: as the cluster says."""
    answer_limit_s: float | None = None
    """How long an answer of its BMC may take; absent: as the cluster says."""
    maintenance: bool = False
    """This host is not condemned."""
    maintenance_until: datetime | None = None
    """When maintenance ends; absent: when an operator ends it."""
    power_maintenance: bool = False
    """Its BMC is under maintenance: it gets no command and proves nothing."""
    power_maintenance_until: datetime | None = None
    """When maintenance of the BMC ends; absent: when an operator ends it."""
    operator_proof: str = ""
    """``<fence>|<name>|<reason>``: an operator confirms that the host is off (docs/how-to/fencing.md)."""
    trust_again: str = ""
    """A new value makes distrusted kinds of proof count again (``outlive host trust``)."""
    requested: str = ""
    """``<epoch>@<uid>|<name>|<reason>``, of its Membership: an operator asks to fence this host, silent or not."""

    def is_in_maintenance(self, now: float) -> bool:
        """Whether this host is in maintenance by its own setting: it is not condemned, and no fault of it is raised."""
        return is_in_effect(self.maintenance, self.maintenance_until, now)

    def power_in_maintenance(self, now: float) -> bool:
        """Whether somebody works on its BMC, which gets no command and proves nothing."""
        return is_in_effect(self.power_maintenance, self.power_maintenance_until, now)


class HypervisorSpec(Part, frozen=True, kw_only=True):
    """What operators want of a host."""

    management: Management = "nova"
    """The system that starts its VMs: ``node`` (Outlive's daemon), ``nova`` or ``kubevirt``."""
    mode: Literal["coordinator", "hypervisor"] = "hypervisor"
    """``coordinator``: its daemon watches other hosts and fences them as well."""
    custom_traits: tuple[str, ...] = ()
    """Traits that operators give it; they count beside ``status.traits``."""
    allowed_projects: tuple[str, ...] = ()
    """Projects that may run here; empty: all."""
    groups: tuple[str, ...] = ()
    """Groups of the host in another system; Outlive only shows them."""
    overcommit: dict[str, float] = {}
    """Resource name → ratio of at least 1.0."""
    high_availability: bool | None = None
    """Whether slots may be there; only ``false`` keeps them away."""
    maintenance: Maintenance = ""
    """Reason for maintenance: recovery and moves put no VM there; ``filter_maintenance`` excludes the host only for
    ``manual`` and ``termination``."""
    fencing: FencingSpec = FencingSpec()
    """How this host is declared dead, and its maintenance."""
    shutdown_policy: ShutdownPolicy = ""
    """What happens to its VMs when it shuts down cleanly: they wait (``freeze``), are recovered elsewhere
    (``failover``), or leave before (``migrate``); empty: as the cluster says."""
    drain: bool = False
    """The host is to be emptied and takes no new VMs."""
    chassis: str = ""
    """Name of its chassis in OVN; empty: the chassis with the host's name or host name."""
    virtual_functions: dict[str, VirtualFunctionSettings] = {}
    """Virtual function → how its daemon programs it."""
    quarantine_release: Annotated[str, Meta(max_length=200)] = ""
    """A new value ends the quarantine (``outlive host release``)."""


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
    """The host's machine and system."""

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
    supported_cpu_modes: Annotated[tuple[str, ...], limit_entries(2000)] = ()
    """Modes of virtual processors that it offers, such as ``host-passthrough``."""
    supported_features: Annotated[tuple[str, ...], limit_entries(2000)] = ()
    """Features of the hypervisor that VMs may ask for."""
    supported_devices: Annotated[tuple[str, ...], limit_entries(2000)] = ()
    """Kinds of virtual devices that it offers."""


class Spared(Part, frozen=True, kw_only=True):
    """A silence for which a host would have been condemned if it had not been in maintenance."""

    at: datetime
    """When it would have been condemned."""
    epoch: int = 0
    """``record.epoch`` of its Membership at that silence."""
    seq: int = 0
    """``record.seq`` of its Membership at that silence: one entry per silence."""
    why: str = ""
    """How long it was silent, and what else would have prevented the fence."""
    under: str = ""
    """Whose maintenance it was."""


class Degrading(Part, frozen=True, kw_only=True):
    """A host that gets slow, as its own daemon scores it, and what happens to its VMs (docs/how-to/degrading.md)."""

    since: datetime
    """When the host began to degrade."""
    causes: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Which scores are bad: ``keepalive``, ``store``, ``disk``, ``hypervisor``, ``storage``."""
    score: int = 0
    """The worst score when this was written, 0 to 100."""
    leaving: Literal["waits", "leaves", "stays"] = "waits"
    """Whether its VMs leave."""
    why: str = ""
    """Why they do not leave, a code such as ``common_cause``; empty while they leave."""


class StorageLoss(Part, frozen=True, kw_only=True):
    """Storage does not serve VMs of a host, or did not when they left it, as its own daemon sees it
    (docs/how-to/degrading.md#storage).
    """

    since: datetime
    """When storage was first seen not to serve them."""
    unreached: bool = False
    """Whether the host does not reach the storage of some of them, or of VMs that have left it since."""
    places: tuple[str, ...] = ()
    """Places of storage that it does not reach, such as ``rbd:vms``; ``rbd:`` means all of that kind."""
    vms: int = 0
    """How many of them are concerned."""
    why: str = ""
    """What the first of them lacks."""
    then: str = ""
    """Why Outlive does nothing about it, a code such as ``common_cause``; empty while it acts."""


class HostDeath(Part, frozen=True, kw_only=True):
    """One death of a host (docs/how-to/fencing.md#quarantine)."""

    at: datetime
    """When it was proven."""
    uid: str
    """Uid of its Membership then."""
    epoch: int
    """The epoch of that Membership that ended."""
    proof: str
    """By what kind of proof it was proven."""
    counts: bool = True
    """Whether it counts for quarantine: not if most hosts died at once, or during maintenance."""


class Quarantine(Part, frozen=True, kw_only=True):
    """The host has died too often: it takes no VM until an operator, or the end time, releases it."""

    since: datetime
    """When the quarantine began."""
    until: datetime
    """When it ends."""
    deaths: int
    """Deaths that count, within ``flapWindowS`` of the cluster's fencing policy."""
    word: str = ""
    """``spec.quarantineRelease`` when it began; another one ends it."""


class HostSchema(Part, frozen=True, kw_only=True):
    """Which storage schemas the daemon of a host knows (docs/how-to/upgrades.md)."""

    active: int = 0
    """The one by which it works; 0: it does not say."""
    latest: int = 0
    """The newest one that its version knows; 0: not reported, which means 1."""


class HypervisorStatus(Part, frozen=True, kw_only=True):
    """The observed state of a host."""

    capacity: Amounts | None = None
    """What the machine has for VMs, before overcommit; absent: not known."""
    effective_capacity: Amounts | None = None
    """Capacity times overcommit, rounded down; absent means capacity."""
    allocation: Amounts | None = None
    """Sum over the VMs that run here; absent: not known."""
    instances: tuple[Instance, ...] = ()
    """VMs that the host reports, running or not."""
    num_instances: int = 0
    """How many VMs the host reports."""
    aggregates: Annotated[tuple[Aggregate, ...], limit_entries(2000)] = ()
    """Nova's host aggregates that it is in."""
    traits: Annotated[tuple[str, ...], limit_entries(2000)] = ()
    """Traits that its source found, such as features of its processors."""
    capabilities: Capabilities = Capabilities()
    domain_capabilities: DomainCapabilities = DomainCapabilities()
    conditions: Annotated[tuple[Condition, ...], limit_entries(64)] = ()
    """``Ready`` and others; a host that is not ``Ready``, is ``HypervisorDisabled`` or ``Terminating`` takes no VMs."""
    evicted: bool = False
    """Whether the managing system reports that its VMs have left; Outlive only shows it."""
    domain_state: DomainState = ""
    """Whether it takes VMs, for hosts with Outlive's daemon."""
    lost: str = ""
    """The fence that proved this host dead; empty once it is back. A lost host takes no VM and reserves nothing."""
    deaths: Annotated[tuple[HostDeath, ...], limit_entries(16)] = ()
    """Deaths within ``flapWindowS``, newest last; at most 16."""
    quarantine: Quarantine | None = None
    """Absent: it is in none."""
    storage_address: str = ""
    """Address of its clients on the storage network, as in locks on disks."""
    addresses: Annotated[dict[str, str], limit_entries(64)] = {}
    """Its configured addresses by network; live migration uses ``cluster``."""
    chassis: str | None = None
    """Name of its chassis in its Open vSwitch; empty: no OVN; absent: not reported."""
    networks: Annotated[dict[str, str], limit_entries(4096)] | None = None
    """Bridged and managed networks → why the host has not made them; empty: it has."""
    bridges: Annotated[dict[str, str], limit_entries(8)] = {}
    """System network → its bridge on the host."""
    rehearsed: str = ""
    """Result of the last rehearsal of its BMC: ``ok``, or the problem."""
    rehearsed_seq: int = 0
    """``record.seq`` of its Membership after the last good rehearsal; 0: none."""
    power_answer_s: float | None = None
    """The slowest of its BMC's last ten good answers, in seconds; absent: not measured."""
    key_ids: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Ids of the cluster's keys that it has, the newest first; only on coordinators."""
    authorities: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Fingerprints of the server authorities that it trusts."""
    recovery_time_objective_s: float | None = None
    """The shortest of its VMs' objectives; absent: none."""
    spared: Annotated[tuple[Spared, ...], limit_entries(16)] = ()
    """The latest eight silences for which it would have been condemned without maintenance."""
    degrading: Degrading | None = None
    """Absent: it is well, or not known."""
    storage_lost: StorageLoss | None = None
    """Absent: storage serves all VMs here, or not known."""
    physical_functions: Annotated[tuple[PhysicalFunction, ...], limit_entries(CARDS_LIMIT)] = ()
    """Cards that its configuration divides into virtual functions."""
    virtual_functions: Annotated[tuple[VirtualFunction, ...], limit_entries(FUNCTIONS_LIMIT)] = ()
    """Virtual functions of these cards, and the VMs that have them."""
    source: str = ""
    """Source of these facts: ``import``, ``nova``, ``kvm.cloud.sap``, ``daemon``."""
    source_name: str = ""
    """Its name in the source, if that cannot be the name of an object."""
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

    def closed_reason(self) -> str:
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
    """Measurements of a host, written every interval. One document."""

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
    """The last log lines of a host's daemon, if ``node.logLines`` asks for them. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="hostlogs",
        halves=False,
        writers=Writers(fields={"": ("daemon",)}, creates=("daemon",), labels="refused"),
        columns=(("Written", ".writtenAt", 0), ("Lines", ".last", 0)),
    )

    process: str
    """The daemon's process that wrote it."""
    last: int = 0
    """Number of lines that this process has logged."""
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
    """Megabits a second of the cable; 0: not known."""
    state: str = ""
    """``up``, ``down`` and others, as in the kernel."""


class HostUsage(Part, frozen=True, kw_only=True):
    """One sample of a host's figures."""

    sampled_at: datetime | None = None
    """When the figures were taken, by the host's clock."""
    used: Amounts = Amounts()
    """Used on the machine; if that is not measured, what its VMs are allocated."""
    allocated: Amounts = Amounts()
    """Of the VMs that run here."""
    provisioned: Amounts = Amounts()
    """Sum over all VMs that run here or are assigned here."""
    load: float = 0.0
    """Busy cores, as the kernel averages them over the last minute."""
    running: int = 0
    """VMs that run here, without those that are paused."""
    present: tuple[str, ...] | None = None
    """VMs with a domain here, or about to have one; absent: not known."""
    guests: dict[str, Amounts] = {}
    """Usage of each VM here: processors over the last interval, memory of its process, bytes a second of its disks
    (``diskRead``, ``diskWritten``) and interfaces (``netReceived``, ``netSent``)."""
    interfaces: Annotated[dict[str, InterfaceRates], limit_entries(256)] = {}
    """Traffic of each card over the last interval, on hosts that make their own links."""
    stale: tuple[str, ...] = ()
    """Sources whose measurements are late, ``domains``, ``guests`` or ``machine``: their values are old."""
    scores: dict[str, int] = {}
    """Health of the host: ``keepalive``, ``store``, ``disk``, ``hypervisor``, ``storage``, each 0 to 100 if
    measured."""
    slopes: dict[str, float] = {}
    """How they change, in points a minute."""
    reached: tuple[str, ...] = ()
    """Of ``status.lostPlaces`` of the ``Cluster``, those that this host reaches."""
