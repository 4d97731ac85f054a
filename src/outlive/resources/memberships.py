"""``Membership`` (may this host's VMs be thought of as running?) and ``Fault`` (what an operator has to know).

A Membership is one document, so that condemning a host is one compare-and-swap on the very version that the host
renews. The rules for changing it are steps in ``outlive.node.membership`` and ``outlive.node.fencing``; here are only
the nouns (docs/concepts/safety.md).
"""

from __future__ import annotations

import enum
import re
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from outlive.resources.meta import (
    HOST_LABEL,
    WRITER_LABEL,
    KindInfo,
    ObjectRef,
    Part,
    Quota,
    Resource,
    Writers,
    limit_entries,
)

MemberState = Literal["Held", "Revoked", "Released"]
ProofKind = Literal["reboot", "self-cleaned", "power", "watchdog", "cut", "operator"]

_BOARD = re.compile(r"[0-9a-f]{32}\Z")


class FencePhase(enum.StrEnum):
    """How far the act of proving a host dead has come."""

    NONE = ""
    CONDEMNED = "condemned"
    """The host may start nothing new; proofs are being looked for."""
    UNCONFIRMED = "unconfirmed"
    """No kind of proof has proven anything yet; it is tried again."""
    PROVEN = "proven"


class Proof(Part, frozen=True, kw_only=True):
    """Why an epoch counts as dead, or what it can no longer reach."""

    kind: ProofKind
    """How that was proven, such as ``power`` or ``watchdog``."""
    evidence: str = ""
    """What was observed, so that an operator can check it."""
    epoch: int = 0
    """The epoch of the host's Membership that it proves something about."""
    by: str = ""
    """The host or the person that recorded it."""
    fence: str = ""
    """Id of its fence; empty: none was open."""
    at: datetime | None = None
    """When it was recorded, for reading; nothing is decided by it."""


class Cut(Part, frozen=True, kw_only=True):
    """What a host is isolated from, with proof, while it may still run."""

    through: int = 0
    """The highest epoch that is to be isolated, written before the first order is sent."""
    scope: tuple[str, ...] = ()
    """``disk:<id>`` and ``port:<id>``, sorted: what was read back."""
    proof: Proof | None = None
    """What proved it; kept as long as the isolation."""


class GuardRecord(Part, frozen=True, kw_only=True):
    """What the host's guard promises about every renewal that carries this."""

    armed: bool = False
    """Whether the guard kills the host's VMs when renewals are not acknowledged."""
    timeout_s: float = 0.0
    """T: seconds after the last acknowledged renewal was sent at which the guard begins to kill."""
    watchdog_s: float = 0.0
    """W: seconds after its last feeding at which the hardware resets the host."""
    laboratory: bool = False
    """The watchdog is a stand-in for tests (``outlive guard --laboratory``) that resets no machine."""


class SilentPeer(Part, frozen=True, kw_only=True):
    """A host that a coordinator sees silent, published with the coordinator's renewals."""

    host: str
    """Name of the silent host."""
    uid: str = ""
    """Of the host's Membership."""
    epoch: int = 0
    """``record.epoch`` of the last renewal that the coordinator saw."""
    seq: int = 0
    """``record.seq`` of the last renewal that the coordinator saw."""
    silent_s: float = 0.0
    """For how long, by the coordinator's clock."""


SILENT_PEERS = 64
"""Silent hosts that one coordinator publishes, the longest silent first."""


class RenewalSight(Part, frozen=True, kw_only=True):
    """What a server has seen of the renewals of hosts. Hosts that are not named renew. Times in seconds."""

    at: datetime
    """When it looked."""
    blind: str = ""
    """Why it sees nobody, such as ``server away``; empty: it sees."""
    silent: dict[str, float] = {}
    """Hosts that are silent for longer than their profile allows → since when they are."""
    unheard: tuple[str, ...] = ()
    """Hosts of which it has not received a renewal since it started."""
    started_s: float = 0.0
    """For how long it has been watching."""
    written: datetime | None = None
    """When the store was last written to; absent: it does not say."""


class PowerOn(Part, frozen=True, kw_only=True):
    """How far a host that was proven dead has been switched on again."""

    tries: int = 0
    """Rises before each command to switch on."""
    result: str = ""
    """``ok`` once the BMC took the last command, else the problem."""


class Unproven(Part, frozen=True, kw_only=True):
    """A kind of proof that has failed so far, and why."""

    kind: ProofKind
    """The kind of proof."""
    why: str
    """Why it has proven nothing."""
    failing: bool = False
    """The isolation of the host could not be renewed: other hosts may use its disks or ports now."""


class FenceRecord(Part, frozen=True, kw_only=True):
    """How far the fence of this host has come."""

    id: str = ""
    """Names the fence; empty: there is none."""
    epoch: int = 0
    """The epoch that is to be proven dead."""
    phase: FencePhase = FencePhase.NONE
    """How far the fence has come; empty: there is none."""
    by: str = ""
    """The coordinator that works on it; another one takes over if it stays unchanged for long."""
    attempt: int = 0
    """Rises before each power command."""
    reason: str = ""
    """Why the host was condemned."""
    findings: Annotated[tuple[Proof, ...], limit_entries(16)] = ()
    """Existing proofs, while the policy asks for more than one kind."""
    unproven: Annotated[tuple[Unproven, ...], limit_entries(16)] = ()
    """Kinds of proof that have failed so far."""
    power_on: PowerOn = PowerOn()
    """Attempts to switch the host on after it was proven dead."""

    @property
    def unproven_why(self) -> str:
        """Why the host is not proven dead so far, kind of proof by kind of proof."""
        return "; ".join(f"{one.kind}: {one.why}" for one in self.unproven)


class FormerMembership(Part, frozen=True, kw_only=True):
    """A Membership of this host that was deleted or that a backup lacks, and what is proven of it."""

    uid: str
    """As in ``holders[].memberUid`` of virtual machines."""
    dead_through: int
    """Its highest epoch that is proven dead; it only grows, together with a proof."""
    proof: Proof
    """What proved that its epochs up to ``deadThrough`` are dead."""


FORMER_MEMBERSHIPS: Final = 64
"""Memberships that ``former`` names; a daemon keeps the latest 16 that it has ended itself."""


class MemberRecord(Part, frozen=True, kw_only=True):
    """All that is known of the membership, written as a whole."""

    machine_id: str
    """Id of its installation and, if the firmware has it, of its board: ``INSTALLATION.BOARD``."""
    boot_id: str
    """Id of the boot in which the daemon joined."""
    epoch: int = 1
    """Incarnation: a boot or a new join raises it."""
    seq: int = 0
    """Rises with every renewal."""
    nonce: str = ""
    """Of the daemon that wrote last, to recognise its own writes."""
    state: MemberState = "Held"
    """``Held``: the host takes part and is watched; ``Revoked``: it was condemned; ``Released``: it left cleanly and is
    not watched."""
    dead_through: int = 0
    """The highest epoch that is proven dead; it only grows."""
    proof: Proof | None = None
    """What proved the epochs up to ``deadThrough`` dead; absent: none is."""
    cut: Cut = Cut()
    guard: GuardRecord = GuardRecord()
    fence: FenceRecord = FenceRecord()
    distrusted: Annotated[tuple[ProofKind, ...], limit_entries(16)] = ()
    """Kinds of proof that were wrong for this host."""
    trust_word: str = ""
    """``spec.fencing.trustAgain`` when a kind was last distrusted; another value makes all kinds count again."""
    incarnation: str = ""
    """The store's incarnation in which the host last joined, left, or was proven dead."""
    former: Annotated[tuple[FormerMembership, ...], limit_entries(FORMER_MEMBERSHIPS)] = ()
    """Lost Memberships of this host, as far as their VMs are proven to be gone."""
    silent: Annotated[tuple[SilentPeer, ...], limit_entries(SILENT_PEERS)] = ()
    """Hosts that this coordinator sees silent, at most the 64 longest; this proves nothing."""

    @property
    def board(self) -> str:
        """System uuid of the machine's board, as it said when it joined; empty where the firmware says none."""
        board = self.machine_id.partition(".")[2]
        return board if _BOARD.match(board) else ""


class Membership(Resource, frozen=True, kw_only=True, tag="Membership"):
    """``Membership/<hypervisor>``: the lease of a host. Its daemon creates it; ``outlive fence --confirm-off`` does so
    if it was lost. Such a document has no machine (``machineId`` is empty): the first host of this name empties itself
    and takes it over.
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="memberships",
        quota=Quota(objects=20_000, protocol=True),
        short_names=("omem",),
        halves=False,
        writers=Writers(
            fields={
                "record.machineId": ("daemon",),
                "record.bootId": ("daemon",),
                "record.epoch": ("daemon",),
                "record.seq": ("daemon",),
                "record.nonce": ("daemon",),
                "record.state": ("daemon", "fencer"),
                "record.deadThrough": ("daemon", "fencer"),
                "record.proof": ("daemon", "fencer"),
                "record.cut": ("fencer",),
                "record.guard": ("daemon",),
                "record.fence": ("fencer",),
                "record.distrusted": ("daemon", "fencer"),
                "record.trustWord": ("daemon", "fencer"),
                "record.incarnation": ("daemon", "fencer", "users"),
                "record.former": ("daemon", "users"),
                "record.silent": ("daemon",),
            },
            creates=("daemon", "users"),
            given={"record": ("users",)},  # of a host whose Membership is lost (outlive fence --confirm-off)
            labels="refused",
        ),
        columns=(
            ("State", ".record.state", 0),
            ("Epoch", ".record.epoch", 0),
            ("DeadThrough", ".record.deadThrough", 0),
            ("Fence", ".record.fence.phase", 0),
            ("Proof", ".record.proof.kind", 0),
            ("Armed", ".record.guard.armed", 0),
            ("Seq", ".record.seq", 1),
        ),
    )

    record: MemberRecord


class Fault(Resource, frozen=True, kw_only=True, tag="Fault"):
    """A problem that lowers the cluster's health until it ends or an operator acknowledges it
    (docs/reference/faults.md). One document.
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="faults",
        short_names=("oflt",),
        halves=False,
        quota=Quota(objects=100_000, mebibytes=256, owners=(HOST_LABEL, WRITER_LABEL), shares=50),
        writers=Writers(
            fields={
                "": ("daemon", "fencer", "primary", "recovery", "controller", "failover"),
                "acknowledged": ("users", "daemon", "fencer", "primary", "recovery", "controller", "failover"),
            },
            creates=("daemon", "fencer", "primary", "recovery", "controller", "failover"),
            deletes=("controller",),
            labels="refused",
        ),
        columns=(
            ("Subject", ".subject.name", 0),
            ("Delta", ".delta", 0),
            ("Acknowledged", ".acknowledged", 0),
            ("Ended", ".ended", 0),
            ("Message", ".message", 0),
            ("Remedy", ".remedy", 1),
        ),
    )

    code: str
    """A code, such as ``fence-unconfirmed``."""
    subject: ObjectRef
    """The object that something is wrong with."""
    message: str
    """The problem as a sentence."""
    remedy: str = ""
    """What helps; empty: nothing in particular."""
    delta: Annotated[int, Meta(ge=0, le=100)] = 0
    """What it takes off the cluster's health of 100."""
    ended: bool = False
    """Whether it is over."""
    acknowledged: bool = False
    """An operator has seen it: it no longer lowers the health."""
    first_seen: datetime
    """When it began; a new time if it returns after its end."""
    last_seen: datetime
    """When it was last reported, or ended."""


TARGETS_LIMIT: Final = 16
"""Targets of notifications."""


class Delivery(Part, frozen=True, kw_only=True):
    """The last message to one target about a fault."""

    target: str
    """Its name in section ``notify`` of ``outlive.yaml``."""
    since: datetime
    """``firstSeen`` of the fault that the message was about."""
    at: datetime
    """When the last message was taken."""
    count: Annotated[int, Meta(ge=1)] = 1
    """Number of messages about the active fault."""


class Notification(Resource, frozen=True, kw_only=True, tag="Notification"):
    """Who was notified of the active fault of the same name; deleted after the message that the fault has ended. One
    document.
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="notifications",
        short_names=("ontf",),
        halves=False,
        quota=Quota(objects=100_000, mebibytes=256),
        writers=Writers(
            fields={"": ("controller",)}, creates=("controller",), deletes=("controller",), labels="refused"
        ),
    )

    deliveries: Annotated[tuple[Delivery, ...], Meta(max_length=TARGETS_LIMIT)] = ()
    """The last message to each target."""
