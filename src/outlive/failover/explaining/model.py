"""What an explanation is given and what it answers: plain, frozen data that serialises to JSON."""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlive.failover.explaining.remedies import Remedy
from outlive.failover.explaining.words import Reason, Refusal, Tally
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planner.actions import Offer
from outlive.failover.sizing import ResolvedSize
from outlive.failover.topology import Topology


class NewHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A host that placement would take for a VM, as far as anybody has to know who buys one."""

    zone: str = ""
    traits: tuple[str, ...] = ()
    cpu_arch: str = ""
    hypervisor_type: str = ""
    """As flavors say it: ``QEMU`` or ``CH``."""
    cpu_milli: int = 0
    memory_bytes: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What placement says about VMs of one class, host by host."""

    reuse: Offer = Offer()
    new: Offer = Offer()
    refusals: tuple[Refusal, ...] = ()
    """What is said against hosts; several hosts may share one."""
    against_new: dict[str, tuple[int, ...]] = {}
    """Host → numbers of the refusals against a new slot, that of the first step first. A refusal about room carries no
    message, since the amounts are in ``room``. Hosts that nothing is said against are left out."""
    against_reuse: dict[str, tuple[int, ...]] = {}
    room: dict[str, tuple[int, int]] = {}
    """Host that is refused for room → milli-cores and bytes that placement has for a new slot there, below zero where
    too much is held. Hosts whose figures cannot be trusted are left out."""
    reuse_room: dict[str, tuple[int, int]] = {}
    """The same for joining a slot there: what slots hold counts as free."""
    need: tuple[int, int] = (0, 0)
    """What placement asks of a host, for either."""
    new_host: NewHost | None = None
    """The least host that placement would take, or ``None`` where no host can be described that it would."""


class Answers(Protocol):
    """Where answers come from: asked one after the other, since most are never needed."""

    def of(self, vm: VmView, size: ResolvedSize) -> Answer | None:
        """The answer about VMs like this one, or ``None`` where it is not known."""
        ...


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The fleet that an explanation quotes."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    hosts: tuple[HostView, ...] = ()
    free: dict[str, tuple[int, int]] = {}
    """Host → free milli-cores and bytes, as plans take them; an empty table limits nothing."""
    capacity: dict[str, tuple[int, int]] = {}
    """Host → all of its milli-cores and bytes."""
    topology: Topology = Topology()
    limit: int = 0
    """VMs that a cycle serves; 0 or less: all."""
    priorities: dict[str, int] = {}
    now: float = 0.0
    """Seconds since 1970."""
    brake_share: float = 0.20
    brake_number: int = 50


class ExplainInput(State, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One VM in a fleet."""

    vm: str
    classes: dict[str, str] = {}
    """VM → key of its answer; missing means the empty key."""
    answers: dict[str, Answer] = {}


class Promise(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A slot that lists the VM."""

    slot: str
    host: str
    counts: bool
    text: str
    """What it promises, or why it does not."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a VM has no slot, or that it has all it needs."""

    vm: str
    host: str
    zone: str = ""
    covered: bool
    required: int
    present: int
    reason: str = ""
    """The word of coverage (docs/reference/failover.md#reasons); empty for a covered VM."""
    text: str
    """The answer in one sentence."""
    summary: tuple[str, ...] = ()
    """Hosts and slots counted by what stands against them, a sentence each."""
    remedy: Remedy | None = None
    otherwise: Remedy | None = None
    """New hosts, where something cheaper was found."""
    promises: tuple[Promise, ...] = ()
    host_tallies: tuple[Tally, ...] = ()
    slot_tallies: tuple[Tally, ...] = ()
    hosts: tuple[Reason, ...] = ()
    slots: tuple[Reason, ...] = ()
