"""What the jobs of all virtual machines of one host share, and what the host remembers of each of them.

The memory is of this process only: nothing is safe because of it. It holds back-offs, and since when a migration has
been in its present phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.node.desired_state import DesiredState
from outlive.node.membership.lease import LeaseRenewer
from outlive.node.membership.pause import PauseGate
from outlive.node.membership.states import MemberView
from outlive.node.ports.guard import GuardPort
from outlive.node.ports.hypervisor import DomainState
from outlive.node.ports.storage import DiskLock, StoragePort
from outlive.node.settings import NodeSettings
from outlive.node.vm.domains import LocalDomains
from outlive.node.vm.records import Change, change_vm, members_of
from outlive.node.vm.states import mine
from outlive.resources import Holder, VirtualMachine
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.faults import FaultSet
from outlive.runtime.informer import Informer
from outlive.store import Store, read


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


@dataclass(slots=True)
class VmMemory:
    """Of one virtual machine."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something about it changed; jobs that wait look at it."""
    not_before_s: float = 0.0
    """No start before this moment (monotonic)."""
    failures: int = 0
    """Starts that failed in a row."""
    crashes: int = 0
    """How often its domain ended by itself in a row."""
    running_since_s: float | None = None
    late_create: str = ""
    """A run whose create was not answered for, and of whose end the guard was not notified yet."""
    mislabelled_s: float | None = None
    """Since when its label names another host than the one that it is assigned to."""
    orphaned_s: float | None = None
    """Since when its document is missing while a domain is here."""
    unknown: bool = False
    """Whether it is reported that the store does not know it."""
    phase: tuple[str, str, int] = ("", "", 0)
    """Move, phase and attempts, as last seen …"""
    phase_since_s: float = 0.0
    """… and since when."""
    sent_to: str = ""
    """Run of another host to which it was sent last."""
    unreadable: int = 0
    """How often in a row storage did not report the locks on its disks."""
    waits: int = 0
    """How often in a row it had to wait for somebody else."""
    order: OrderMemory | None = None
    """While it may start and does not run yet, if it starts after others."""


@dataclass(slots=True)
class VmContext:
    """See the module."""

    host: str
    daemon: Store
    move: Store
    keeper: LeaseRenewer
    here: LocalDomains
    pause: PauseGate
    guard: GuardPort
    storage: StoragePort
    desired: DesiredState
    settings: NodeSettings
    informer: Informer[VirtualMachine]
    decisions: DecisionLog
    faults: FaultSet
    clock: Clock
    ids: Ids
    starts: asyncio.Semaphore
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
    outgoing: dict[str, None] = field(default_factory=dict)
    """Virtual machines that are being sent."""
    lock_reports: dict[tuple[str, str], LockReport] = field(default_factory=dict)
    """Locks of living hosts, by volume and id."""

    def memory(self, vm: str) -> VmMemory:
        """Of this virtual machine."""
        return self.memories.setdefault(vm, VmMemory())

    def known(self, vm: str) -> bool:
        """Whether the store as it is now has had a document of it: if that is missing, somebody has deleted it.

        A store that was restored from a backup may miss one that was made since.
        """
        return self.read_in.get(vm) == self.desired.incarnation

    async def confirmed(self) -> bool:
        """Whether the store has not gone back behind this host's membership; else that is renewed soon."""
        if await self.keeper.stands():
            return True
        self.keeper.renew_soon()
        return False

    def entry(self, vm: VirtualMachine) -> Holder | None:
        """This host's entry of the run that is here."""
        domain = self.here.domains.get(vm.name)
        entries = mine(vm, self.keeper.me) if domain is not None else ()
        return next((one for one in entries if domain is not None and one.run_id == domain.run_id), None)

    def runs(self, vm: VirtualMachine) -> bool:
        """Whether the last look showed a running domain here, of a run that this host holds."""
        domain = self.here.domains.get(vm.name)
        return domain is not None and domain.state is DomainState.RUNNING and self.entry(vm) is not None

    # What the store has of it

    async def find(self, vm: str) -> VirtualMachine | None:
        """As last seen, or read where it is not among those that this host observes."""
        return self.informer.get(vm) or await self.read(vm)

    async def read(self, vm: str) -> VirtualMachine | None:
        """As it is now; ``None`` if there is none."""
        return await read(self.daemon, VirtualMachine, vm)

    async def change(self, vm: str, change: Change) -> VirtualMachine | None:
        """See ``change_vm``."""
        return await change_vm(self.daemon, vm, change, self.clock)

    async def members(self, vm: VirtualMachine) -> tuple[MemberView, ...]:
        """The memberships of all holders; this host's own as the store last showed it."""
        record = self.keeper.record
        own = () if record is None else (MemberView(host=self.host, uid=self.keeper.me.uid, record=record),)
        return own + await members_of(self.daemon, vm.status.holders, but=self.host)
