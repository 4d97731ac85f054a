"""What would give a VM its slots: actions as data, their cost, and the sentence for people.

A remedy is a few actions of one kind. Who carries them out (``applying``) and then runs a cycle finds the VM covered;
that was tried on the model before it is said (docs/design/failover.md#remedies). Fewer required slots are
never proposed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from outlive.base import count_of, format_bytes, format_milli, join_parts, noun_for
from outlive.failover.model import HostView, SlotView
from outlive.failover.planner.actions import PlacementOffer
from outlive.failover.slots import ResolvedSize, format_amounts
from outlive.failover.topology import Topology
from outlive.placement import VmView
from outlive.resources.reasons import Obstacle

CAPACITY_WORD: Final = "capacity"
"""Part of the name of every placement step that looks at room."""
WAIT_OR_PLAN: Final = "wait for a cycle, or run `outlive failover plan --apply`"
"""What helps a VM that could be served now."""
CLEANED_UP: Final = "wait for the next cycle: its clean-up takes the clash away"
"""What helps where a rule is broken for the VM, and will not be for long."""
NOT_CLEANED_UP: Final = "`outlive failover check` names the broken rule; clean-up does not take it away by itself"
"""The same where it stays, as under the brake."""


class PlacementRefusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a step of placement says against a host."""

    step: str
    code: str = ""
    message: str = ""

    @property
    def is_capacity(self) -> bool:
        """Whether it is about room."""
        return CAPACITY_WORD in self.step and self.code != Obstacle.ZERO_SIZE


class CandidateReason(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One host or slot in the answer."""

    host: str
    slot: str = ""
    reason: str
    """A code of ``Obstacle``; ``rule-1`` to ``rule-5`` for rules."""
    message: str
    other_vm: str = ""
    other_host: str = ""
    other_slot: str = ""
    step: str = ""
    code: str = ""


class ReasonTally(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hosts or slots with the same thing against them."""

    reason: str
    """As in ``CandidateReason``; slots that the rules close are counted together, as ``rule``."""
    count: int
    text: str
    """As it reads in a sentence after the number."""
    example: str = ""
    """The first of them, by name."""


def part_amounts(cpu_milli: int, memory_bytes: int) -> str:
    """An amount for people, without what is zero of it."""
    if not memory_bytes:
        return f"{format_milli(cpu_milli)} cpu"
    return format_amounts(cpu_milli, memory_bytes) if cpu_milli else f"{format_bytes(memory_bytes)} memory"


class RemedyKind(enum.StrEnum):
    """Kinds of remedies, cheapest first."""

    CYCLE = "wait-for-a-cycle"
    REPLAN = "plan-anew"
    REPACK = "move-a-membership"
    FREE = "free-room"
    READY = "make-ready"
    SIZE = "give-the-flavor-a-size"
    ADD_HOSTS = "add-hosts"
    ASK_AGAIN = "ask-again"
    NONE = "none"


COSTS = {
    RemedyKind.CYCLE: 0,
    RemedyKind.REPLAN: 5,
    RemedyKind.REPACK: 10,
    RemedyKind.FREE: 20,
    RemedyKind.READY: 30,
    RemedyKind.SIZE: 40,
    RemedyKind.ADD_HOSTS: 100,
    RemedyKind.ASK_AGAIN: 0,
    RemedyKind.NONE: 1_000,
}
"""What a remedy of each kind is worth; only the order counts. Each host to add costs as much again."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="action"):
    """One action."""


class MoveMembership(_Step, frozen=True, kw_only=True, tag="move-membership"):
    """Another VM joins one slot and then leaves another."""

    vm: str
    vm_host: str
    from_slot: str
    to_slot: str

    def describe(self) -> str:
        """As an order."""
        return f"move VM {self.vm} from slot {self.from_slot} to slot {self.to_slot}"


class FreeRoom(_Step, frozen=True, kw_only=True, tag="free-room"):
    """So much more must become free on a host: by moving VMs away, or by more capacity."""

    host: str
    cpu_milli: int = 0
    memory_bytes: int = 0

    def describe(self) -> str:
        """As an order."""
        return f"free {part_amounts(self.cpu_milli, self.memory_bytes)} on {self.host}"


class HostReady(_Step, frozen=True, kw_only=True, tag="host-ready"):
    """A host must be able to take slots: its conditions good, no maintenance, high availability on."""

    host: str
    why: str
    """What placement says against it now."""

    def describe(self) -> str:
        """As an order."""
        return f"make host {self.host} ready ({self.why})"


class SlotReady(_Step, frozen=True, kw_only=True, tag="slot-ready"):
    """A slot's condition ``Ready`` must become true."""

    slot: str

    def describe(self) -> str:
        """As an order."""
        return f"make slot {self.slot} ready (see the condition Ready of Reservation/{self.slot})"


class GiveSize(_Step, frozen=True, kw_only=True, tag="give-size"):
    """A VM that declares no cpu or no memory must declare some."""

    vm: str
    flavor: str
    cpu_milli: int
    memory_bytes: int

    def describe(self) -> str:
        """As an order."""
        return f"give flavor {self.flavor!r} cpu and memory above zero"


class NewHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A host that placement would take for a VM, as far as anybody has to know who buys one."""

    zone: str = ""
    traits: tuple[str, ...] = ()
    cpu_arch: str = ""
    hypervisor_type: str = ""
    """As flavors say it: ``QEMU`` or ``CH``."""
    cpu_milli: int = 0
    memory_bytes: int = 0


class AddHosts(NewHost, frozen=True, kw_only=True, tag="add-hosts", tag_field="action"):
    """New hosts, each a unit of failure of its own."""

    count: int
    names: tuple[str, ...] = ()
    """What they are called while nobody has named them."""

    @classmethod
    def from_host(cls, host: NewHost, names: Sequence[str]) -> AddHosts:
        """Hosts like this one."""
        return cls(count=len(names), names=tuple(names), **msgspec.structs.asdict(host))

    def describe(self) -> str:
        """As an order."""
        parts = [f"add {count_of(self.count, 'host')}"]
        if self.zone:
            parts.append(f"in zone {self.zone}")
        if self.traits:
            parts.append(f"with {noun_for(len(self.traits), 'trait')} {join_parts(self.traits)}")
        if self.cpu_arch:
            parts.append(f"of architecture {self.cpu_arch}")
        each = "each with at least " if self.count > 1 else "with at least "
        return f"{' '.join(parts)}, {each}{format_amounts(self.cpu_milli, self.memory_bytes)} free"


Action = MoveMembership | FreeRoom | HostReady | SlotReady | GiveSize | AddHosts


class Remedy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What would give the VM its slots."""

    kind: RemedyKind
    cost: int
    text: str
    actions: tuple[Action, ...] = ()
    tried: bool = False
    """Whether the model says that it covers the VM."""


def build_remedy(kind: RemedyKind, actions: Sequence[Action] = (), *, text: str = "", tried: bool = True) -> Remedy:
    """A remedy of these actions; without ``text`` it names them all, and an amount on several hosts once."""
    hosts = sum(action.count for action in actions if isinstance(action, AddHosts))
    cost = COSTS[kind] * max(1, hosts, len(actions))
    rooms: dict[tuple[int, int], list[str]] = {}
    others: list[str] = []
    for action in actions:
        if isinstance(action, FreeRoom):
            rooms.setdefault((action.cpu_milli, action.memory_bytes), []).append(action.host)
        else:
            others.append(action.describe())
    freed = [
        f"free {part_amounts(*size)} on {'each of ' if len(names) > 1 else ''}{join_parts(names)}"
        for size, names in rooms.items()
    ]
    return Remedy(kind=kind, cost=cost, text=text or join_parts([*freed, *others]), actions=tuple(actions), tried=tried)


class PlacementAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What placement says about VMs of one class, host by host."""

    reuse: PlacementOffer = PlacementOffer()
    new: PlacementOffer = PlacementOffer()
    refusals: tuple[PlacementRefusal, ...] = ()
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


class AnswerSource(Protocol):
    """Where answers come from: asked one after the other, since most are never needed."""

    def find_answer(self, vm: VmView, size: ResolvedSize) -> PlacementAnswer | None:
        """The answer about VMs like this one, or ``None`` where it is not known."""
        ...


class ExplainedFleet(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
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
    overbooked: dict[str, tuple[int, int]] = {}
    """Host → milli-cores and bytes that are in use there beyond what it has; those where anything is."""
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


class ExplainInput(ExplainedFleet, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One VM in a fleet."""

    vm: str
    classes: dict[str, str] = {}
    """VM → key of its answer; missing means the empty key."""
    answers: dict[str, PlacementAnswer] = {}


class SlotPromise(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A slot that lists the VM."""

    slot: str
    host: str
    counts: bool
    text: str
    """What it promises, or why it does not."""


class CoverageExplanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a VM has no slot, or that it has all it needs."""

    vm: str
    host: str
    zone: str = ""
    covered: bool
    required: int
    present: int
    reason: str = ""
    """The word of coverage (docs/reference/failover-analysis.md#reasons); empty for a covered VM."""
    text: str
    """The answer in one sentence."""
    summary: tuple[str, ...] = ()
    """Hosts and slots counted by what rules them out, a sentence each."""
    remedy: Remedy | None = None
    otherwise: Remedy | None = None
    """New hosts, where something cheaper was found."""
    promises: tuple[SlotPromise, ...] = ()
    host_tallies: tuple[ReasonTally, ...] = ()
    slot_tallies: tuple[ReasonTally, ...] = ()
    hosts: tuple[CandidateReason, ...] = ()
    slots: tuple[CandidateReason, ...] = ()
