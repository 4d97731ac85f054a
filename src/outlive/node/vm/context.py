"""What the jobs of all virtual machines of one host share, and what the host remembers of each of them.

The memory is of this process only: nothing is safe because of it. It holds back-offs, and since when a migration has
been in its present phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from outlive.base import Clock, Ids
from outlive.node.fencing.isolation import Isolation
from outlive.node.fencing.policy import DesiredState
from outlive.node.links.reconciler import LinkReconciler
from outlive.node.links.vm_ports import TrafficMeter
from outlive.node.membership.holders import may_run_unknown
from outlive.node.membership.lease import LeaseRenewer
from outlive.node.membership.pause import PauseGate
from outlive.node.membership.states import MemberView, member_view
from outlive.node.permissions_of_protocol import is_related
from outlive.node.ports import (
    DiskLock,
    Domain,
    DomainState,
    GuardPort,
    MachinePort,
    MigrationSettings,
    NetworkPort,
    NoNetworks,
    StoragePort,
)
from outlive.node.storage_watch import StorageLosses
from outlive.node.vm.domains import ForeignDomains, LocalDomains
from outlive.node.vm.states import check_phase, own_entries
from outlive.placement import function_refusal
from outlive.resources import (
    CONSOLE_LINES,
    HOST_LABEL,
    LOG_LINES,
    RUN_FINALIZER,
    AffinityRule,
    Fault,
    Holder,
    Membership,
    ObjectRef,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.resources.reasons import FaultCode, Reason
from outlive.runtime import DecisionLog, Duration, FaultSet, Informer, fault_name
from outlive.store import Store, change_status, compare_and_swap, read


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``node``."""

    # the timing of fencing is not here: it is a profile, because fencers and hosts have to agree upon it

    look: Duration = Duration(5.0)
    """How often the daemon reads the wanted state of its host and lists its domains."""
    usage: Duration = Duration(30.0)
    """How often the host's measurements are published."""
    storage_statistics: Duration = Duration(30.0)
    """How often the primary coordinator queries the storage cluster; 0: never."""
    write_limit: Duration = Duration(2.0)
    """How long one renewal may take before it counts as lost."""
    call_limit: Duration = Duration(30.0)
    """How long other calls of the hypervisor may take."""
    create_limit: Duration = Duration(60.0)
    """How long creating a domain may take."""
    shutdown_limit: Duration = Duration(180.0)
    """How long a guest may take to shut down before it is stopped hard."""
    going_down: Literal["shutdown", "leave"] = "shutdown"
    """What happens to guests when the machine shuts down."""
    starts: int = 16
    """Virtual machines that are started at once."""
    start_after_limit: Duration = Duration(180.0)
    """How long a VM waits for those in its ``spec.startAfter``; 0: it does not wait."""
    moves: int = 2
    """Concurrent live moves out of this host, and into it."""
    move_limit: Duration = Duration(30.0)
    """How long the other side of a move may take for its next step."""
    transfer_limit: Duration = Duration(900.0)
    """How long a live transfer may make no progress before it is called off; 0: no limit."""
    downtime_ms: int = 300
    """The longest pause of a guest while it moves live."""
    migration_bandwidth_mib_s: int = 0
    """MiB a second that one live move may use; 0: no limit."""
    migration_auto_converge: bool = True
    """Slow a guest down if it changes memory faster than that is sent."""
    migration_post_copy: bool = False
    """Whether a guest may run at its target before all of its memory is there."""
    migration_post_copy_after: Duration = Duration(30.0)
    """Time for the first attempt of a live move, before the second one uses post-copy; 0: all use it."""
    migration_multifd: int = 0
    """Parallel connections for a guest's memory; 0: one."""
    migration_tls: bool = False
    """Whether guests are sent encrypted."""
    migration_limit: Duration = Duration(0.0)
    """After so long a live move is called off and tried again; 0: only by ``transferLimit``."""
    drain_wait: Duration = Duration(120.0)
    """How long a drain waits for one VM before it takes the next."""
    require_fit: bool = True
    """Whether a VM only moves to hosts that have the memory for it."""
    mem_means: Literal["provisioned", "free"] = "provisioned"
    """Figure for the selector ``mem``."""
    log_lines: Annotated[int, Meta(ge=0, le=LOG_LINES)] = 0
    """Log lines in the store, for ``outlive host log``; 0: none."""
    console_lines: Annotated[int, Meta(ge=0, le=CONSOLE_LINES)] = 1000
    """Lines of each guest's console in the store; 0: none."""
    store_cas_per_s: float | None = None
    """Measured compare-and-swaps of the store a second; absent: not measured."""


T = TypeVar("T")
POST_COPY_ATTEMPT: Final = 2
"""Which attempt of a live move is by post-copy, where that is allowed."""


def settings_of(vm: VirtualMachine, settings: NodeSettings) -> MigrationSettings:
    """How it moves while it runs: as the VM says, else as the daemon is set."""
    spec = vm.spec

    def choose(own: T | None, otherwise: T) -> T:
        return otherwise if own is None else own

    asked_ms = spec.migration_downtime_ms
    post_copy = choose(spec.migration_post_copy, settings.migration_post_copy)
    return MigrationSettings(
        downtime_ms=asked_ms if asked_ms is not None and asked_ms > 0 else settings.downtime_ms,
        bandwidth_mib_s=choose(spec.migration_bandwidth_mib_s, settings.migration_bandwidth_mib_s),
        auto_converge=choose(spec.migration_auto_converge, settings.migration_auto_converge),
        post_copy=post_copy,
        multifd=0 if post_copy else choose(spec.migration_multifd, settings.migration_multifd),
        tls=choose(spec.migration_tls, settings.migration_tls),
        time_limit_s=choose(spec.migration_limit_s, float(settings.migration_limit)),
        stall_limit_s=float(settings.transfer_limit),
    )


def settings_for_attempt(settings: MigrationSettings, attempt: int, after_s: float) -> MigrationSettings:
    """Post-copy is for what is not done without it in time: a guest is lost where either side fails during it."""
    if not settings.post_copy or attempt == POST_COPY_ATTEMPT or after_s <= 0:
        return settings
    limit_s = settings.time_limit_s
    limit_s = min(limit_s or after_s, after_s) if attempt < POST_COPY_ATTEMPT else limit_s
    return _replace(settings, post_copy=False, time_limit_s=limit_s)


Change = Callable[[VirtualMachine], VirtualMachineStatus | None]
"""From what was read to the status to write; ``None``: nothing (more)."""

_replace = msgspec.structs.replace


@dataclass(slots=True)
class OrderMemory:
    """Since when one waits for others, and what was seen of them meanwhile."""

    fence: str
    """Of the assignment by which it could start."""
    since_s: float
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Virtual machine → the run that its document names, and how often its host had renewed by then."""


@dataclass(frozen=True, slots=True)
class LockReport:
    """A lock of a host that lives, and what the host has reported since it was seen."""

    lock: DiskLock
    daemon: tuple[str, int, str]
    """Membership, epoch and nonce."""
    figures: str
    """Version of its figures; empty: it had none."""
    reports: int = 0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of other hosts on the storage network."""

    hosts: dict[str, tuple[str, ...]]
    read_s: float
    """When that was read (monotonic)."""


@dataclass(slots=True)
class VmMemory:
    """Of one virtual machine."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something about it changed; jobs that wait look at it."""
    looks: int = 0
    """Looks in a row after which, or during which, it was to be looked at again at once."""
    not_before_s: float = 0.0
    """No start before this moment (monotonic)."""
    failures: int = 0
    """Starts that failed, since it last ran for as long as its policy says (``resetS``) or a user asked for it."""
    crashes: int = 0
    """How often its domain ended by itself in a row."""
    running_since_s: float | None = None
    late_create: str = ""
    """A run whose create was not answered for, and of whose end the guard was not notified yet."""
    mislabelled_s: float | None = None
    """Since when its label names another host than the one that it is assigned to."""
    orphaned_s: float | None = None
    """Since when its document is missing while a domain is here."""
    phase: tuple[str, str, int] = ("", "", 0)
    """Move, phase and attempts, as last seen …"""
    phase_since_s: float = 0.0
    """… and since when."""
    preparing: tuple[tuple[str, str, int], float] | None = None
    """The attempt of a move here whose network is being prepared, and since when."""
    sent_to: str = ""
    """Run of another host to which it was sent last."""
    alone_since_s: float | None = None
    """Since when it runs on a part of its memory and nobody sends the rest."""
    obstructions: int = 0
    """How often in a row something was in the way of its start that may end."""
    shutdown_until_s: float | None = None
    """When a shutdown that a request has interrupted becomes hard (monotonic), unless the request is accepted."""
    waits: int = 0
    """How often in a row it had to wait for somebody else."""
    unanswered: tuple[str, float] = ("", 0.0)
    """Id of the request that was tried without its outcome becoming known, and since when."""
    yields_until_s: float = float("-inf")
    """Until then it lets others of its group that are to start elsewhere go first."""
    left_to_group: bool = False
    """Whether it was rejected because the host is closed to another of its group; that is done once."""
    resumed: int = 0
    """How often it was let go on after an error of a disk since storage has served it, …"""
    resume_s: float = 0.0
    """… and when the next time may be (monotonic)."""
    left_storage: tuple[str, str] = ("", "")
    """Run that this host ended because storage did not serve it, and why, until recovery knows."""
    order: OrderMemory | None = None
    """While it may start and does not run yet, if it starts after others."""


class GuestCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the present run of one guest has used so far, of all its disks and all its interfaces together."""

    vm: str
    cpu_s: float = 0.0
    """Processor time of its process."""
    resident_bytes: int = 0
    """That its process has of the host's memory now."""
    read_bytes: int = 0
    written_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


Statistics = Callable[[], Awaitable[Sequence[GuestCounts]]]
"""Of all guests that run, by one question. ``Unavailable`` where the hypervisor does not answer."""

LogStamp = tuple[int, int, int]
"""Which file it is, its size, and when it was changed last: as they were before it was read."""


class LogEnd(msgspec.Struct, frozen=True):
    """The end of the log of one console."""

    stamp: LogStamp
    raw: bytes
    """Whole lines, but for the last one."""


class ConsoleLogs(Protocol):
    """What guests of this host wrote to their consoles."""

    async def read_changed(self, known: Mapping[str, LogStamp | None], most: int) -> Mapping[str, LogEnd]:
        """Of these virtual machines those whose log is not as it is known, with at most ``most`` bytes of its end.

        A log that is missing, or is no file that can be read, is left out. ``Unavailable`` where the disk hangs.
        """
        ...


class FunctionBookings(Protocol):
    """The virtual functions of this host's cards, as starts and moves of virtual machines need them."""

    async def assign(self, vm: VirtualMachine) -> Reason | None:
        """Have the VM, which starts here, use the functions that it needs; what is in the way. ``Unavailable``."""
        ...

    async def reserve(self, vm: VirtualMachine) -> Reason | None:
        """Reserve them for a VM that is on its way here; what is in the way. ``Unavailable``."""
        ...

    def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The VM as this host is to create it: with the names that the functions' devices have here."""
        ...

    def notify(self) -> None:
        """A VM came, or left: look at the books soon."""
        ...


class NoFunctionBookings(FunctionBookings):
    """This host has no virtual functions: a VM that needs some does not start here."""

    def __init__(self, host: str) -> None:
        self._host = host

    async def assign(self, vm: VirtualMachine) -> Reason | None:
        """The first function that is missing."""
        return function_refusal(vm.name, self._host, vm.spec.functions, ())

    async def reserve(self, vm: VirtualMachine) -> Reason | None:
        """The same."""
        return await self.assign(vm)

    def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The same."""
        return vm

    def notify(self) -> None:
        """There is nothing to look at."""


@dataclass(slots=True)
class VmContext:
    """See the module."""

    host: str
    nonce: str
    """Of this process; new for every one."""
    store: Store
    domains: LocalDomains
    pause: PauseGate
    guard: GuardPort
    machine: MachinePort
    storage: StoragePort
    isolation: Isolation
    """Who can say which hosts are isolated."""
    desired: DesiredState
    settings: NodeSettings
    informer: Informer[VirtualMachine]
    decisions: DecisionLog
    faults: FaultSet
    clock: Clock
    ids: Ids
    starts: asyncio.Semaphore
    statistics: Statistics | None = None
    """What guests use; ``None``: nobody counts it."""
    consoles: ConsoleLogs | None = None
    """``None``: nobody keeps what they write to their consoles."""
    networks: Mapping[str, str] = field(default_factory=dict)
    """This host's own addresses by network."""
    network: NetworkPort = field(default_factory=NoNetworks)
    """Of virtual machines, as far as a controller programs them."""
    functions: FunctionBookings = field(init=False)
    """Virtual functions of this host's cards."""
    links: LinkReconciler | None = None
    """What the daemon makes of this host's own network; ``None``: nothing."""
    traffic: TrafficMeter | None = None
    """What the cards of this host receive and send, where the daemon makes its network."""
    lease: LeaseRenewer = field(init=False)
    foreign: ForeignDomains = field(init=False)
    """What runs here and Outlive did not make."""
    reported: Callable[[], None] = lambda: None
    """The set of virtual machines here changed: publish it."""
    cleaned: bool = True
    """Whether nothing of an earlier epoch is left to be taken over; until then no foreign run is destroyed."""
    memories: dict[str, VmMemory] = field(default_factory=dict)
    read_in: dict[str, str] = field(default_factory=dict)
    """Virtual machines here whose document this daemon has read, and the store's incarnation then."""
    creates: dict[str, None] = field(default_factory=dict)
    """Runs that this daemon has asked the guard for, and of whose end it has not notified it."""
    incoming: dict[str, None] = field(default_factory=dict)
    """Virtual machines for which a domain is being made that listens."""
    arriving: dict[str, tuple[AffinityRule, ...]] = field(default_factory=dict)
    """Virtual machines that start now, and what keeps them apart from others."""
    outgoing: dict[str, None] = field(default_factory=dict)
    """Virtual machines that are being sent."""
    lock_reports: dict[tuple[str, str, str], LockReport] = field(default_factory=dict)
    """Locks of living hosts, by volume, id and host."""
    addresses: Addresses | None = None
    """Which host has which, as last read."""
    losses: StorageLosses = field(default_factory=StorageLosses)
    """Virtual machines here that storage does not serve any more."""

    def __post_init__(self) -> None:
        self.functions = NoFunctionBookings(self.host)
        self.lease = LeaseRenewer(self)
        self.foreign = ForeignDomains(self.domains, self.store, self.clock, self.host)

    async def is_isolated(self, epoch: int) -> bool:
        """Whether storage or network isolates that epoch of this host now. ``Unavailable`` where that was not said."""
        return await self.isolation.is_isolated(self.host, epoch)

    @property
    def frozen(self) -> bool:
        """Whether the cluster is disarmed so that VMs stay as they are."""
        return self.desired.cluster_spec.disarmed_mode(self.clock.now()) == "freeze"

    def memory_of(self, vm: str) -> VmMemory:
        """Of this virtual machine."""
        return self.memories.setdefault(vm, VmMemory())

    def was_read(self, vm: str) -> bool:
        """Whether the store as it is now has had a document of it: if that is missing, somebody has deleted it.

        A store that was restored from a backup may miss one that was made since.
        """
        return self.read_in.get(vm) == self.desired.incarnation

    async def confirm_store(self) -> bool:
        """Whether the store has not gone back behind this host's membership; else that is renewed soon."""
        if await self.lease.is_current():
            return True
        self.lease.renew_soon()
        return False

    def find_entry(self, vm: VirtualMachine) -> Holder | None:
        """This host's entry of the run that is here."""
        domain = self.domains.by_vm.get(vm.name)
        entries = own_entries(vm, self.lease.me) if domain is not None else ()
        return next((one for one in entries if domain is not None and one.run_id == domain.run_id), None)

    def is_running(self, vm: VirtualMachine) -> bool:
        """Whether the last look showed a running domain here, of a run that this host holds."""
        domain = self.domains.by_vm.get(vm.name)
        return domain is not None and domain.state is DomainState.RUNNING and self.find_entry(vm) is not None

    # What the store has of it

    async def find(self, vm: str) -> VirtualMachine | None:
        """As last seen, or read where it is not among those that this host observes."""
        return self.informer.get(vm) or await self.read(vm)

    async def read(self, vm: str) -> VirtualMachine | None:
        """As it is now; ``None`` if there is none."""
        return await read(self.store, VirtualMachine, vm)

    async def change(self, vm: str, change: Change) -> VirtualMachine | None:
        """The virtual machine after the change, or as it was found where there was nothing to write; ``None``: gone.

        A compare-and-swap whose function is called anew on each fresh reading; a phase that must not follow the present
        one is not written. Of a virtual machine that this host has nothing to do with any more, for example in a
        restored store, it writes no more than its own entries, as its token allows. ``Unavailable`` where the store is
        away, or others keep changing the virtual machine.
        """

        def apply_change(now: VirtualMachine) -> VirtualMachineStatus | None:
            status = change(now)
            if status is None:
                return None
            if not is_related(self.host, now) and status != _replace(now.status, holders=status.holders):
                return None
            return _replace(status, phase=check_phase(now, status.phase))

        return await change_status(self.store, VirtualMachine, vm, apply_change, clock=self.clock)

    async def unknown_run(self, vm: str) -> str:
        """What some host reports of a domain of this name that the store did not know; empty: nobody reports one, or
        that host is proven dead since, and its domains with it. Its text may not be shown to this host."""
        about = ObjectRef(kind="VirtualMachine", name=vm)
        fault = await read(self.store, Fault, fault_name(FaultCode.UNKNOWN_VM, about))
        if fault is None or fault.ended:
            return ""
        reporter = fault.metadata.labels.get(HOST_LABEL, "")
        member = await read(self.store, Membership, reporter) if reporter else None
        if not may_run_unknown(member.record if member is not None else None):
            return ""
        return fault.message or f"{reporter or 'a host'} runs a VM {vm} that the store did not know"

    async def guard_deletion(self, vm: str) -> VirtualMachine | None:
        """The virtual machine, which from now on is only marked when somebody deletes it; ``None``: gone.

        One that is marked already takes no new finalizers. ``Unavailable`` as ``change`` raises it.
        """

        def add_finalizer(now: VirtualMachine | None) -> VirtualMachine | None:
            if now is None or now.guarded or now.deleting:
                return None
            finalizers = (*now.metadata.finalizers, RUN_FINALIZER)
            return _replace(now, metadata=_replace(now.metadata, finalizers=finalizers))

        return await compare_and_swap(self.store, VirtualMachine, vm, add_finalizer, clock=self.clock, half="spec")

    async def relabel(self, vm: str, host: str) -> None:
        """Let ``host`` observe the virtual machine. Before it is assigned, always.

        Not where this host has nothing to do with it any more, except to set right what it labelled itself.
        """

        def set_label(now: VirtualMachine | None) -> VirtualMachine | None:
            if now is None or not (is_related(self.host, now) or host == now.host):
                return None
            return _replace(now, metadata=_replace(now.metadata, labels={**now.metadata.labels, HOST_LABEL: host}))

        await compare_and_swap(self.store, VirtualMachine, vm, set_label, clock=self.clock, half="spec")

    async def assign(self, vm: str, host: str, change: Change) -> VirtualMachine | None:
        """A change that assigns it to ``host``: the label first, and set right again where it is not assigned there.

        A label that is changed for nothing would only wake everybody, this host as well.
        """
        fresh = await self.read(vm)
        if fresh is None or change(fresh) is None:
            return fresh
        await self.relabel(vm, host)
        after = await self.change(vm, change)
        now = after.status.assigned if after is not None else None
        if now is not None and now.hypervisor not in (host, ""):
            await self.relabel(vm, now.hypervisor)
        return after

    async def read_members(self, vm: VirtualMachine) -> tuple[MemberView, ...]:
        """The memberships of all holders; this host's own as the store last showed it."""
        record = self.lease.record
        own = () if record is None else (MemberView(host=self.host, uid=self.lease.me.uid, record=record),)
        hosts = sorted({one.hypervisor for one in vm.status.holders} - {self.host})
        found = [await read(self.store, Membership, host) for host in hosts]
        return own + tuple(member_view(one) for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class SeenVm:
    """A virtual machine as its document was read just now, and what a look after that has shown of it here."""

    node: VmContext
    vm: VirtualMachine
    domain: Domain | None
    memory: VmMemory
