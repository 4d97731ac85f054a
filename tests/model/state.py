"""What a state of the model consists of: plain frozen values, one for each document, machine and process.

Documents carry integer versions and the product's own content. A process is what it remembers, and at most one write to
each document that is on its way. Time is counted in ticks: ages of what was sent, seen or fed, never dates.
"""

from __future__ import annotations

import msgspec

from outlive.node.membership import RememberedMembership
from outlive.resources import Assigned, Consumer, Holder, MemberRecord

HOSTS = ("kvm-1", "kvm-2")
FENCERS = ("fencer-1", "fencer-2")
VM = "v"
DISK, PORT = "d", "p"
SCOPE = (f"disk:{DISK}", f"port:{PORT}")
SLOT = "slot-1"

replace = msgspec.structs.replace


class Value(msgspec.Struct, frozen=True):
    """Comparable and hashable."""


class Doc(Value, frozen=True):
    """A Membership; no record: it is not there."""

    version: int
    uid: str
    record: MemberRecord | None
    age: int = 0
    """Ticks since it changed, as far as anybody asks."""


class Vm(Value, frozen=True):
    """The VM: what a user wants of it, and its status."""

    version: int
    wanted: bool = True
    assigned: Assigned | None = None
    holders: tuple[Holder, ...] = ()
    move: str = ""
    """A move of it from the first host to the second, by its id."""
    declined: str = ""
    """A run of the target of a move that was ended before it ever ran."""
    guarded: bool = True
    """Whether it has our finalizer, so that deleting it only marks it …"""
    deleted: bool = False
    """… as somebody has."""
    gone: bool = False
    """Whether it is not there, and its name is free."""
    dropped: tuple[str, ...] = ()
    """For the judge alone: runs whose entry somebody else took away."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to run."""
        return self.wanted and not self.deleted and not self.gone


class Slot(Value, frozen=True):
    """The slot that is promised to the VM, on the second host."""

    version: int
    consumer: Consumer | None = None
    robbed: bool = False
    """For the judge alone: it was taken from another VM."""


class Write(Value, frozen=True):
    """A compare-and-swap on its way, or answered and not yet heard of."""

    what: str
    by: str
    slot: int
    """Of the document in the state."""
    version: int
    content: Doc | Vm | Slot
    age: int = 0
    answer: str = ""
    """``ok``, ``conflict``, or ``lost``: its writer knows nothing of it any more."""
    nonce: str = ""
    """Of the daemon that sent it."""
    on_its_way: bool = True
    """Whether it may still take effect."""


class Domain(Value, frozen=True):
    """A domain, with what its own metadata says."""

    run: str
    epoch: int
    state: str = "running"
    """``running``, ``incoming``, ``sending``, ``handed`` (sent completely, paused)."""
    peer: str = ""
    """The run that it is being sent to."""


class Host(Value, frozen=True):
    """A machine with its guard, its disk and its hypervisor."""

    machine: str
    boot: int = 1
    power: bool = True
    paused: bool = False
    domain: Domain | None = None
    creates: tuple[Domain, ...] = ()
    """Creates that the hypervisor was asked for."""
    hidden: tuple[str, ...] = ()
    """Runs among them that the guard was not told of."""
    unlisted: tuple[str, ...] = ()
    """Runs among them that an earlier daemon asked for, where those are not listed."""
    elsewhere: Domain | None = None
    """A domain on a machine that once had this name and that nobody switched off."""
    remembered: RememberedMembership | None = None
    used: RememberedMembership | None = None
    """For the judge alone: the last membership that was really used."""
    armed: bool = False
    shut: bool = False
    closed: bool = False
    """Whether the gate was shut since the present epoch began."""
    beat: int = 0
    """Ticks since the newest acknowledged renewal was sent."""
    fed: int = 0
    """Ticks since its watchdog was fed."""
    guard: bool = True
    """Whether its guard lives."""
    runs: int = 0
    daemons: int = 0
    cut: tuple[str, ...] = ()
    """What it is really shut out of."""
    cut_epoch: int = 0


class Daemon(Value, frozen=True):
    """A node daemon, and its VM worker."""

    phase: str = "down"
    """``down``, ``look``, ``join``, ``member``, ``refused``."""
    boot: int = 0
    nonce: str = ""
    epoch: int = 0
    held: bool = False
    known: Doc | None = None
    old: int = 0
    """The epoch that it came back from by J3."""
    first_look: bool = True
    was_running: bool = False
    write: Write | None = None
    vm_write: Write | None = None
    run: str = ""
    """That is being started."""
    incoming: bool = False
    held_in: str = ""
    """The store's incarnation before that run was asked for."""
    holders: tuple[Holder, ...] | None = None
    """As the store answered for that run."""
    read: Vm | None = None
    """An earlier reading of the VM, where a rule about fresh readings is left out."""
    declined: str = ""
    """A run that it ended before it ever ran, and of which it has not said so yet."""
    unknown: tuple[str, int] = ("", 0)
    """A run that it has, and for which it found no VM, in which incarnation of the store."""
    renewals: int = 0


class Fencer(Value, frozen=True):
    """A fencer that watches the first host."""

    known: Doc | None = None
    age: int = 0
    """Y: ticks since it first saw the version that was condemned, or first saw it revoked."""
    quiet: int = 0
    epoch: int = 0
    fence: str = ""
    write: Write | None = None
    power: str = ""
    """``sent``, ``done``."""
    readings: tuple[float, ...] = ()
    asked: int = 0
    """Readings of a controller that says off and on in turn."""
    cut: str = ""
    """``announced``, ``written``, ``read``, ``unwritten`` (read back, and never ordered)."""
    lift: int = 0
    """The epoch of a cut that it is about to lift."""


class Recovery(Value, frozen=True):
    """The recovery controller."""

    vm: Vm | None = None
    members: tuple[Doc, ...] = ()
    slot: Slot | None = None
    fence: str = ""
    write: Write | None = None
    paused: bool = False


class Outside(Value, frozen=True):
    """BMCs, operators, the store's incarnation, and what is left of the time and of the faults."""

    faults: int = 0
    ticks: int = 0
    incarnation: int = 1
    asserted: str = ""
    """The fence that an operator asserted to be off."""
    late_off: int = 0
    powered: bool = False
    """Whether the controller took a command."""
    late_lift: int = 0
    backup: tuple[Doc, Doc, Vm, Slot] | None = None
    unknown_on: str = ""
    """The host of which the store has a report that it runs a VM that the store did not know."""
    done: tuple[str, ...] = ()
    """Faults of which there may be only one, that were."""


A_MEMBER, B_MEMBER, THE_VM, THE_SLOT, A_HOST, B_HOST, A_DAEMON, B_DAEMON, FENCER_1, FENCER_2, RECOVERY, NET, OUTSIDE = (
    range(13)
)
MEMBER, HOST, DAEMON = (A_MEMBER, B_MEMBER), (A_HOST, B_HOST), (A_DAEMON, B_DAEMON)
"""Slots of a state, by host."""
FENCER = (FENCER_1, FENCER_2)
