"""What the plan of recovery sees: hosts by whether they can take a VM, slots, and VMs that something is to be done for.

Plain, frozen data, so that a plan can be saved, asked again and explained. Whether a holder is fenced is decided before
(``outlive.node.membership.states``); a plan never proves anything, and every write that follows from it looks again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from outlive.placement import Group
from outlive.resources import (
    DEFAULT_LIMITS,
    AffinityRule,
    Consumer,
    Disarmed,
    FreeFunction,
    FunctionNeed,
    Part,
    Reservation,
    find_condition,
)
from outlive.resources.reasons import Message, Reason, SlotReason, render


class HostHealth(enum.StrEnum):
    """What is known of a host's membership."""

    LIVE = "live"
    SILENT = "silent"
    """Held, but not renewed for as long as its profile allows."""
    REVOKED = "revoked"
    DEAD = "dead"
    """Its present epoch is proven dead."""
    RELEASED = "released"
    UNKNOWN = "unknown"
    """It has no Membership."""


class HostState(Part, frozen=True, kw_only=True):
    """A host, as far as recovery cares."""

    name: str
    health: HostHealth = HostHealth.LIVE
    refuses: str = ""
    """Why it is not schedulable though it lives; empty: it is."""
    drained: bool = False
    """Not schedulable only because it is to be drained: what is on its way there it starts, and moves on in order."""
    lost_places: tuple[str, ...] = ()
    """Places of storage that it does not reach."""
    functions: tuple[FreeFunction, ...] = ()
    """Virtual functions of its cards, and the VMs that have them or get them."""
    vcpu_milli: int = 0
    """Allocated to the VMs that it reports."""
    vms: int = 0
    """How many it reports."""
    unconfirmed: bool = False
    """Condemned, and no proof was found yet."""
    awaited: bool = False
    """Went down cleanly, and its policy is that its VMs wait for it."""
    unattended: bool = False
    """Silent for long, and no coordinator lives who could condemn it."""

    @property
    def lost(self) -> bool:
        """Whether it was condemned, whether or not a proof was found yet."""
        return self.health in (HostHealth.REVOKED, HostHealth.DEAD)

    @property
    def schedulable(self) -> bool:
        """Whether a VM may be sent there."""
        return self.health is HostHealth.LIVE and not self.refuses

    @property
    def starts(self) -> bool:
        """Whether it starts a VM that is on its way there already."""
        return self.health is HostHealth.LIVE and (self.drained or not self.refuses)


class SlotState(Part, frozen=True, kw_only=True):
    """A slot that is promised to one of the VMs, or that has a consumer."""

    name: str
    uid: str = ""
    host: str = ""
    members: tuple[str, ...] = ()
    recorded: dict[str, str] = {}
    """Member → the host that it ran on when it joined; missing: where it was lost."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    ready: bool = True
    consumer: Consumer | None = None

    @classmethod
    def from_slot(cls, slot: Reservation) -> Self:
        """The slot with its members, also those of a slot that has a consumer."""
        failover, ready = slot.status.failover_reservation, find_condition(slot.status.conditions, "Ready")
        members = failover.allocations if failover is not None else {}
        return cls(
            name=slot.name,
            uid=slot.metadata.uid,
            host=slot.status.host,
            members=tuple(sorted(members)),
            recorded=members,
            cpu_milli=slot.spec.resources.cpu_milli,
            memory_bytes=slot.spec.resources.memory_bytes,
            ready=ready is None or ready.status == "True",
            consumer=slot.status.consumer,
        )


class HolderState(Part, frozen=True, kw_only=True):
    """A host that may be running the VM."""

    host: str
    fenced: bool = False
    known: bool = True
    """Whether the Membership that the entry was written under is there, or known to be over."""
    uid: str = ""
    """Of that Membership."""


class AffectedVm(Part, frozen=True, kw_only=True):
    """A VM that something may have to be done for."""

    id: str
    fence: str = ""
    """Identity of this recovery: it stays while the VM goes from one slot to the next."""
    priority: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    wanted: bool = True
    mode: str = ""
    """Its policy (``RecoveryPolicy.mode``)."""
    asked: bool = False
    """Whether a user has asked for it since its recovery began, whatever its policy says."""
    holders: tuple[HolderState, ...] = ()
    assigned: str = ""
    slot: str = ""
    """Of the assignment."""
    arriving: bool = False
    """In a move to the host that it is assigned to, which keeps room for it."""
    unfinished: bool = False
    """Whether a recovery of it was begun and has not ended."""
    waits_for_host: bool = False
    """Nothing was done yet but to say that its host, which was stopped in order, has to start; nobody asked for it."""
    running: bool = False
    """Seen running where it is assigned, and held by nobody else."""
    refusal: str = ""
    """Why the host that it is assigned to does not start it; empty: it has not said so."""
    blocked: str = ""
    """Why no host could start it now, as the host says that it is assigned to, which tries again."""
    blocked_by_itself: bool = False
    """Whether that is its own disk or definition, and nobody else has anything to end."""
    avoid: tuple[str, ...] = ()
    """Hosts that refused it, or let their time pass, in this recovery, and that are not asked again yet."""
    tried: tuple[str, ...] = ()
    """The same, with those that may be asked again."""
    relocations: int = 0
    """Hosts that placement chose for it after others did not start it."""
    max_relocations: int = DEFAULT_LIMITS.max_relocations
    """So many may be chosen before it is held; 0: it starts nowhere else than where it was sent first."""
    failed_hosts: tuple[str, ...] = ()
    """Hosts that died, one after the other, soon after it was started there."""
    max_host_failures: int = DEFAULT_LIMITS.max_host_failures
    """After so many it waits for a person; 0: never."""
    waited_s: float = 0.0
    """Since the assignment was first seen as it is."""
    after: tuple[str, ...] = ()
    """VMs that are to be seen running before its host starts it."""
    waits_for: str = ""
    """What the host that it is assigned to reports of those that it waits for; empty: it waits for nobody."""
    wait_limit_s: float = 0.0
    """The longest that it waits for them, as its host reports."""
    host_limit: tuple[str, ...] = ()
    """The only hosts that it may run on; empty: any."""
    disks: tuple[str, ...] = ()
    rules: tuple[AffinityRule, ...] = ()
    """Groups that it is in; ``RecoveryView.groups`` says where the others are."""
    functions: tuple[FunctionNeed, ...] = ()
    """Virtual functions that it needs of its host."""
    preferred: dict[str, int] = {}
    """Host → weight."""
    selector: str = ""
    """How a host is chosen for it; empty: as the cluster says."""
    offers: tuple[str, ...] | None = None
    """Hosts that placement ranks, best first; ``None``: not asked yet. None of them where no host has room."""

    @property
    def stays_down(self) -> bool:
        """Whether, by its policy, a user has to ask for it once its host died."""
        return self.mode == "hold" and not self.asked

    @property
    def brings_down_hosts(self) -> bool:
        """Whether it is not started before a person has asked for it."""
        return 0 < self.max_host_failures <= len(self.failed_hosts) and not self.asked


class Free(Part, frozen=True, kw_only=True):
    """What a host has left after its VMs, all slots, and VMs that are on their way to it."""

    cpu_milli: int = 0
    memory_bytes: int = 0


class RecoveryView(Part, frozen=True, kw_only=True):
    """All that is looked at in one go: every host that died meanwhile is in the same plan."""

    vms: tuple[AffectedVm, ...] = ()
    gone: tuple[str, ...] = ()
    """VMs that have a slot as its consumers and that do not exist."""
    slots: tuple[SlotState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    groups: tuple[Group, ...] = ()
    """Groups of the VMs, with all members that are on, or go to, hosts that are not lost."""
    free: dict[str, Free] = {}
    """Only for VMs with ``offers``."""
    searched: bool = False
    """Whether placement was asked about those that are in no slot; those without ``offers`` got no answer."""
    default_selector: str = ""
    """How hosts are chosen for VMs that do not say."""
    paused: bool = False
    disarmed: Disarmed = ""
    """How the cluster is disarmed: nothing is recovered."""
    waits_for: tuple[str, ...] = ()
    """Hosts that a paused cluster waits for, as far as they are known."""
    incarnation: str = ""
    """The store's, for the remedy."""
    start_limit_s: float = 60.0
    """How long a host may take to hold a VM that was assigned to it."""


class ActionKind(enum.StrEnum):
    """What is done about one VM."""

    SLOT = "slot"
    """Claim the slot, then assign the VM to its host."""
    PLACE = "place"
    """Assign it to a host where it has no slot."""
    SEARCH = "search"
    """Ask placement for a host, then plan again."""
    HOLD = "hold"
    """Nothing can be done until somebody acts; the reason and what to do about it are recorded."""
    WAIT = "wait"
    """It is somebody else's turn, and will be looked at again."""
    DROP = "drop"
    """Nobody wants it to run, or to be recovered: its fenced holders are taken out."""
    DONE = "done"
    """It runs again: the record is closed."""


class RecoveryAction(Part, frozen=True, kw_only=True):
    """What is done about one VM, and why."""

    vm: str
    kind: ActionKind
    fence: str = ""
    host: str = ""
    slot: str = ""
    reason: Reason
    against: tuple[Reason, ...] = ()
    """Soft rules that it goes against there."""

    @property
    def message(self) -> Message:
        """Why, and what an operator can do about it."""
        return render(self.reason)


class Release(Part, frozen=True, kw_only=True):
    """A slot that its consumer does not need any more."""

    slot: str
    vm: str
    reason: Reason


class Reclaim(Part, frozen=True, kw_only=True):
    """A slot whose consumer was taken out although the VM is on its way into it."""

    slot: str
    vm: str
    fence: str


class RecoveryPlan(Part, frozen=True, kw_only=True):
    """One action for every VM, most important first, and slots to be put right."""

    actions: tuple[RecoveryAction, ...] = ()
    releases: tuple[Release, ...] = ()
    reclaims: tuple[Reclaim, ...] = ()


def claim_is_over(vm: AffectedVm, slot: str, host: str) -> SlotReason | None:
    """Why the VM will not come into the slot, of which it is the consumer; ``None``: it is there, or may yet come."""
    if vm.slot == slot and vm.assigned == host:
        return None
    if not vm.wanted and not vm.holders and not vm.unfinished:
        return SlotReason.VM_NOT_WANTED
    if vm.unfinished and vm.slot not in ("", slot) and not vm.holders:
        return SlotReason.VM_ON_ITS_WAY
    return SlotReason.VM_ELSEWHERE if any(not holder.fenced for holder in vm.holders) else None


def with_offers(
    view: RecoveryView, offers: Mapping[str, tuple[str, ...]], free: Mapping[str, Free], hosts: Iterable[HostState]
) -> RecoveryView:
    """The view with placement's answers, and the hosts that they name."""
    vms = tuple(msgspec.structs.replace(vm, offers=offers.get(vm.id, vm.offers)) for vm in view.vms)
    known = {host.name: host for host in (*view.hosts, *hosts)}
    hosts = tuple(known[name] for name in sorted(known))
    return msgspec.structs.replace(view, vms=vms, hosts=hosts, free={**free}, searched=True)
