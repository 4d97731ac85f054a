"""What recovery does about a VM whose host died or does not start it: why it goes where it goes, waits, or is held."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from outlive.resources.reasons.model import Table, Template, Value, fill


class HoldReason(enum.StrEnum):
    """Why recovery does not start a VM until somebody acts."""

    MEMBERSHIP_MISSING = "membership-missing"
    FENCE_UNCONFIRMED = "fence-unconfirmed"
    UNATTENDED = "unattended"
    STORE_RESTORED = "store-restored"
    CLUSTER_DISARMED = "cluster-disarmed"
    DISK_LOCKED = "disk-locked"
    CANNOT_START = "cannot-start"
    """For a reason of its own, which every host would find."""
    HOST_STOPPED = "host-stopped"
    HOST_AWAITED = "host-awaited"
    HOST_NOT_JOINED = "host-not-joined"
    REFUSED = "refused"
    RELOCATION_LIMIT = "relocation-limit"
    NOT_ELSEWHERE = "not-elsewhere"
    """Its policy (``maxRelocations`` 0) lets it start nowhere else than where it was sent first."""
    KEPT_DOWN = "kept-down"
    """Its own policy says so."""
    BRINGS_DOWN_HOSTS = "brings-down-hosts"
    """Hosts died under it, one soon after the other."""
    NO_ROOM = "no-room"
    RULED_OUT = "ruled-out"
    """There is room, on hosts that its own rules close to it."""
    STORAGE_UNREACHED = "storage-unreached"
    """There is room, on hosts that do not reach what its disks lie on."""


MAY_RUN: Final = frozenset({HoldReason.MEMBERSHIP_MISSING, HoldReason.UNATTENDED})
"""A host may still be running the VM: that it is down would be a guess."""
REPORTED_OF_HOST: Final = frozenset(
    {HoldReason.FENCE_UNCONFIRMED, HoldReason.STORE_RESTORED, HoldReason.CLUSTER_DISARMED, HoldReason.HOST_AWAITED}
)
"""Reasons that are a fault of the host, the store or the cluster, and not of each VM; or, by policy, of nobody."""


class PlanReason(enum.StrEnum):
    """Why a VM waits, or goes where it goes."""

    RUNNING = "running"
    HELD_BY_HOST = "held-by-host"
    FENCE_UNDER_WAY = "fence-under-way"
    NOT_WANTED = "not-wanted"
    IGNORED = "ignored"
    """Its own policy says that nobody recovers it."""
    WAITS_FOR_OTHERS = "waits-for-others"
    STARTING = "starting"
    LEFT_TO_HOST = "left-to-host"
    PROMISED = "promised"
    """No other VM that has lost its host has a claim to the slot."""
    CONTESTED = "contested"
    """Others have a claim as well: the slot was promised to none of them alone, as ``survive`` says."""
    LISTED_ELSEWHERE = "listed-elsewhere"
    """The slot lists the VM on another host than it was lost with: it counted for nobody."""
    MOVED_THERE = "moved-there"
    ASKED_THERE = "asked-there"
    """A user has asked for that host."""
    NO_SLOT = "no-slot"
    PLACED = "placed"
    ASKED_AGAIN = "asked-again"
    """The host that it was sent to last refused it long ago, and no other one takes it."""


class SlotReason(enum.StrEnum):
    """Why a VM does not go into a slot, or why a slot's consumer is taken out."""

    NOT_PROMISED = "slot-not-promised"
    HOST_NOT_LIVE = "slot-host-not-live"
    HOST_REFUSES = "slot-host-refuses"
    TAKEN = "slot-taken"
    NOT_STARTED = "slot-not-started"
    NOT_READY = "own-slot-not-ready"
    RULED_OUT = "slot-ruled-out"
    TOO_SMALL = "own-slot-too-small"
    FOR_ANOTHER = "slot-for-another"
    VM_GONE = "slot-vm-gone"
    VM_ELSEWHERE = "slot-vm-elsewhere"
    VM_ON_ITS_WAY = "slot-vm-on-its-way"
    VM_NOT_WANTED = "slot-vm-not-wanted"


class StepReason(enum.StrEnum):
    """One step of a recovery."""

    ASKED = "asked"
    FENCED = "fenced"
    CLAIMED = "claimed"
    MOVED_ON = "moved-on"
    ASSIGNED = "assigned"
    AGAINST_RULE = "against-soft-rule"
    REJECTED = "rejected"
    HELD = "held"
    SEEN_RUNNING = "seen-running"
    DROPPED = "dropped"


class StoryReason(enum.StrEnum):
    """What became of a VM that lost its host."""

    BACK_ON_ITS_HOST = "back-on-its-host"
    WHERE_IT_WAS_MOVED = "recovered-where-it-was-moved"
    IN_PROMISED_SLOT = "recovered-in-promised-slot"
    IN_CONTESTED_SLOT = "recovered-in-contested-slot"
    IN_OTHER_SLOT = "recovered-in-other-slot"
    ASKED_THERE = "recovered-where-asked"
    PLACED = "recovered-placed"
    HELD = "recovery-held"
    WAITS_FOR_OTHERS = "recovery-waits-for-others"
    ASSIGNED = "recovery-assigned"
    DROPPED = "recovery-dropped"
    IGNORED = "recovery-ignored"
    WAITS_FOR_PROOF = "recovery-waits-for-proof"


LOST: Final = "{vm} lost {origin} (fence {fence})"
CAUSES: Final[Mapping[Value, str]] = {
    "not-started": "{vm} was not started by {origin}",
    "asked": "{vm} was asked for while {origin} was not there",
}
"""How a story of what recovery did begins, by ``Recovery.cause``; any other is a host that died."""
RUNS: Final = " and runs on {host} again, "


def _story_template(rest: str) -> Template:
    return Template(lambda fields: fill(CAUSES.get(fields.get("cause", ""), LOST) + rest, fields))


TABLE: Final[Table] = {
    HoldReason.MEMBERSHIP_MISSING: Template(
        "{host} may still run it, and Membership/{host} does not exist or belongs to another machine",
        "a Membership that is applied again does not help; once you know that the machine that ran it is off or empty: "
        "outlive fence {host} --confirm-off --membership {uid} --reason ...",
    ),
    HoldReason.FENCE_UNCONFIRMED: Template(
        "{host} is condemned, and there is no proof yet that it is off",
        "outlive fence {host} --confirm-off --reason ... once you know that it is off",
    ),
    HoldReason.UNATTENDED: Template(
        "{host} is silent, and no coordinator lives that could prove that it is off",
        "start the daemon of a coordinator, or of {host}; or outlive host promote HOST, of a living one, and restart "
        "its daemon",
    ),
    HoldReason.STORE_RESTORED: Template(
        "the cluster is paused, because the store went back to an earlier state, and waits for {count}: {hosts}",
        "start their daemons; or, once you know that they all run nothing: outlive restore --confirm HOST,...",
    ),
    HoldReason.CLUSTER_DISARMED: Template(
        "the cluster is disarmed ({mode}), so nothing is recovered", "outlive arm --cluster, once the work is done"
    ),
    HoldReason.DISK_LOCKED: Template(
        "{host} may not start it, and no other host may: {why}",
        "see who has its disk open and end that, or prove that host dead (outlive fence HOST --reason ...); it is "
        "tried again by itself",
    ),
    HoldReason.CANNOT_START: Template(
        "{host} cannot start it, and no other host can: {why}",
        "bring back or correct its disk or its definition; its host tries again",
    ),
    HoldReason.HOST_STOPPED: Template(
        "{host}, which it is assigned to, was stopped cleanly",
        "start {host} again, or move the VM to another host",
    ),
    HoldReason.HOST_AWAITED: Template(
        "{host} went down cleanly, and by its shutdown policy (freeze) its VMs wait for it",
        "switch {host} on; or, to have them recovered elsewhere: outlive host shutdown-policy {host} failover",
    ),
    HoldReason.HOST_NOT_JOINED: Template(
        "{host}, which it is assigned to, has no Membership and starts nothing",
        "see why {host} does not join, or move the VM to another host",
    ),
    HoldReason.REFUSED: Template(
        "it was refused or not started by {hosts}{why}, and no other host has room",
        "see why they refused it; it is tried again",
    ),
    HoldReason.RELOCATION_LIMIT: Template(
        "it was refused or not started by {hosts}{why}, and its policy lets placement try no more than {limit} hosts",
        "see why they refused it, then: outlive vm start {name}; placement tries the next host after a while",
    ),
    HoldReason.NOT_ELSEWHERE: Template(
        "it was refused or not started by {hosts}{why}, and its policy (maxRelocations 0) lets it start nowhere else",
        "see why they refused it, then: outlive vm start {name}; they are asked again after a while; to let "
        "it start elsewhere, raise spec.recovery.maxRelocations",
    ),
    HoldReason.KEPT_DOWN: Template(
        "{host} does not run it any more, and its policy (spec.recovery.mode) is hold",
        "outlive vm start {name}",
    ),
    HoldReason.BRINGS_DOWN_HOSTS: Template(
        "{hosts} died, each soon after it was started there; it may be what brings them down",
        "see why these hosts died; if it was not this VM: outlive vm start {name}",
    ),
    HoldReason.NO_ROOM: Template(
        "{slots}, and no living host that it may run on has room for it",
        "add a host, stop other VMs, repair a dead one, or widen where it may run (outlive placement rank --vm {name} "
        "--explain)",
    ),
    HoldReason.RULED_OUT: Template(
        "{slots}, and its rules close every living host that has room for it: {why}",
        "make room on a host that its rules allow, or make the rule soft",
    ),
    HoldReason.STORAGE_UNREACHED: Template(
        "{slots}, and no living host that has room for it reaches its storage: {why}",
        "check the storage, and the network of the hosts to it",
    ),
    PlanReason.RUNNING: Template("it runs on {host}"),
    PlanReason.HELD_BY_HOST: Template("{host} holds it"),
    PlanReason.FENCE_UNDER_WAY: Template("{host} is being fenced"),
    PlanReason.NOT_WANTED: Template("nobody wants it to run"),
    PlanReason.IGNORED: Template("its policy (spec.recovery.mode) is ignore"),
    PlanReason.WAITS_FOR_OTHERS: Template("{why}"),
    PlanReason.STARTING: Template("{host} is to start it"),
    PlanReason.LEFT_TO_HOST: Template("{host} is to start it, as it did before"),
    PlanReason.PROMISED: Template("slot {slot} on {host} was promised to it"),
    PlanReason.CONTESTED: Template("slot {slot} on {host}, to which {rivals} had a claim as well"),
    PlanReason.LISTED_ELSEWHERE: Template("slot {slot} on {host} lists it as on {there}"),
    PlanReason.MOVED_THERE: Template("it was being moved to {host}, which keeps room for it"),
    PlanReason.ASKED_THERE: Template("a user asked for {host}"),
    PlanReason.NO_SLOT: Template("{slots}"),
    PlanReason.PLACED: Template("{slots}; {host} has room"),
    PlanReason.ASKED_AGAIN: Template("{host} refused it, no other host takes it, and it is asked again"),
    SlotReason.NOT_PROMISED: Template("no slot was promised to it"),
    SlotReason.HOST_NOT_LIVE: Template("slot {slot} on {host}: its host is {health}"),
    SlotReason.HOST_REFUSES: Template("slot {slot} on {host}: {why}"),
    SlotReason.TAKEN: Template("slot {slot} on {host} is taken by {by}"),
    SlotReason.NOT_STARTED: Template("slot {slot} on {host}: its host did not start it"),
    SlotReason.NOT_READY: Template("slot {slot} on {host} is not ready"),
    SlotReason.RULED_OUT: Template("slot {slot} on {host}: {why}"),
    SlotReason.TOO_SMALL: Template("slot {slot} on {host} is too small for it"),
    SlotReason.FOR_ANOTHER: Template("slot {slot} on {host} goes to a VM that has no other"),
    SlotReason.VM_GONE: Template("{vm} does not exist"),
    SlotReason.VM_ELSEWHERE: Template("{vm} is assigned to {host}"),
    SlotReason.VM_ON_ITS_WAY: Template("{vm} is on its way to {host}"),
    SlotReason.VM_NOT_WANTED: Template("nobody wants {vm} to run"),
    StepReason.FENCED: Template("an earlier copy of it can do no harm any more, proven by {kind}"),
    StepReason.ASKED: Template("a user asked for it by request {request} ({verb})"),
    StepReason.CLAIMED: Template("its slot {slot} is claimed"),
    StepReason.MOVED_ON: Template("it takes no slot: {why}"),
    StepReason.ASSIGNED: Template("it is assigned to {host}"),
    StepReason.AGAINST_RULE: Template("it goes against a rule that is soft: {why}"),
    StepReason.REJECTED: Template("{host} did not start it: {why}"),
    StepReason.HELD: Template("it is held: {why}"),
    StepReason.SEEN_RUNNING: Template("it is seen running on {host}"),
    StepReason.DROPPED: Template("it stays down: {why}"),
    StoryReason.BACK_ON_ITS_HOST: _story_template(", which came back and runs it again"),
    StoryReason.WHERE_IT_WAS_MOVED: _story_template(RUNS + "where it was being moved to"),
    StoryReason.IN_PROMISED_SLOT: _story_template(RUNS + "in its promised slot {slot}"),
    StoryReason.IN_CONTESTED_SLOT: _story_template(RUNS + "in slot {slot}, to which other VMs had a claim as well"),
    StoryReason.IN_OTHER_SLOT: _story_template(RUNS + "in slot {slot}, which was not promised to it"),
    StoryReason.ASKED_THERE: _story_template(RUNS + "where a user wanted it"),
    StoryReason.PLACED: _story_template(RUNS + "where placement found room"),
    StoryReason.HELD: _story_template(" and is held: {why}"),
    StoryReason.WAITS_FOR_OTHERS: _story_template(", has its place on {host}, and waits there for {others}"),
    StoryReason.ASSIGNED: _story_template(" and is assigned to {host}, where it has not been seen running yet"),
    StoryReason.DROPPED: _story_template(" and stays down: nobody wants it to run"),
    StoryReason.IGNORED: _story_template(" and is not recovered: its policy (spec.recovery.mode) is ignore"),
    StoryReason.WAITS_FOR_PROOF: _story_template(" and waits: its host is not proven dead yet"),
}
