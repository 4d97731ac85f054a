"""Why a VM is as its phase says, why its host did not start it, and why a migration did not end at its target."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from outlive.resources.reasons.model import Table, Template, Value


class VmReason(enum.StrEnum):
    """Why a VM does not run, or does not run yet."""

    STOPPED_BY_SPEC = "stopped-by-spec"
    """Ends when the spec says ``running`` again."""
    STOPPED_BY_DRAIN = "stopped-by-drain"
    """Ends when its host takes VMs again."""
    TO_BE_DISABLED = "to-be-disabled"
    """Of a stop after which it is disabled."""
    CRASHED = "crashed"
    CLUSTER_PAUSED = "cluster-paused"
    """Ends with the pause; what that waits for is a Fault of the cluster."""
    CLUSTER_FROZEN = "cluster-frozen"
    """Ends when the cluster, which is disarmed with ``freeze``, is armed again."""
    GUARD_GAVE_UP = "guard-gave-up"
    """The guard of its host could not empty it in time, and lets nothing start; another host may start it."""
    LOCKS_UNREADABLE = "locks-unreadable"
    """Its host could not read the locks on its disks; that may pass, or another host may be able to."""
    ISOLATION_UNCONFIRMED = "isolation-unconfirmed"
    LOCK_NOT_REMOVED = "lock-not-removed"
    """Its host could not remove a stale lock; another one may."""
    LOCK_FOREIGN = "lock-foreign"
    """Somebody who is not proven dead has a lock: no host may start it."""
    LOCK_SHARED = "lock-shared"
    """Another VM has the same disk, and the lock may be its: no host may start it."""
    DISK_NOT_SHARED = "disk-not-shared"
    """Another VM has the same disk, and not both share it: no host may start it."""
    DISK_MISSING = "disk-missing"
    """Storage answers, and has no such disk: no host may start it."""
    DEFINITION_INVALID = "definition-invalid"
    """No hypervisor makes a machine of its definition."""
    LOCK_UNCONFIRMED = "lock-unconfirmed"
    """A living host has a lock, and has not reported yet whether the VM is on it."""
    HANDOVER_LATE = "handover-late"
    """It stands still on its way to another host, which does not say that it runs there."""
    STILL_HERE = "still-here"
    DEVICE_REFUSED = "device-refused"
    AGAINST_AFFINITY = "against-affinity"
    """Where it was to start a hard affinity rule of it closes its host, as others are by then."""
    FOREIGN_DOMAIN = "foreign-domain"
    """On its host runs what Outlive did not make, and which may be a VM of the cluster; that may pass."""
    NAME_RUNS = "name-runs"
    """A host runs a domain of its name that the store did not know: no host may start it before that has ended."""
    NOT_ENDED = "not-ended"
    """A kill of its domain is not known to be done, and no listing shows the domain; the kill is repeated."""
    BEING_DELETED = "being-deleted"
    """It was deleted, and a host may still run it; ends with the VM."""
    STORAGE_LOST = "storage-lost"
    """It is on its host, and storage does not serve it any more."""
    LEFT_STORAGE = "left-storage"
    """Its host has ended it because storage did not serve it there; another host may start it."""
    FUNCTION_NOT_FREE = "function-not-free"
    """Its host does not have a virtual function that it needs, or another VM has it; another host may."""
    NOT_CREATED = "not-created"
    NOT_STARTED = "not-started"
    START_FAILED = "start-failed"


OF_EVERY_HOST: Final = frozenset(
    {VmReason.LOCK_FOREIGN, VmReason.LOCK_SHARED, VmReason.DISK_MISSING, VmReason.DEFINITION_INVALID}
)
"""Reasons that are the VM's own: every host that reaches the same storage would say the same, so none is tried after
the first. All others are of the one host."""
BLOCKED_BY_OTHERS: Final = frozenset({VmReason.LOCK_UNCONFIRMED, VmReason.NAME_RUNS, VmReason.DISK_NOT_SHARED})
"""Reasons that end once another virtual machine or host has ended something, on every host."""
LOCKED: Final = frozenset({VmReason.LOCK_FOREIGN, VmReason.LOCK_SHARED})
"""Those of them that end when somebody closes a disk."""


class OrderReason(enum.StrEnum):
    """Whether a VM starts after others, or without them; and what is known of one of these, to follow "which"."""

    STARTS_AFTER = "starts-after"
    STARTS_WITHOUT = "starts-without"
    MISSING = "other-missing"
    NOT_WANTED = "other-not-wanted"
    FAILED = "other-failed"
    DRAINED = "other-drained"
    HELD = "other-held"
    WAITS = "other-waits"
    NOT_SEEN = "other-not-seen"
    TO_START = "other-to-start"
    NO_HOST = "other-without-host"
    CIRCLE = "other-in-circle"
    NO_LIMIT = "other-not-waited-for"
    LATE = "other-late"


class MigrationReason(enum.StrEnum):
    """Why a migration did not end at its target."""

    SELF_TARGET = "self-target"
    PEER_TIMEOUT = "peer-timeout"
    TARGET_CHANGED = "target-changed"
    TARGET_LOST = "target-lost"
    CANNOT_RECEIVE = "cannot-receive"
    NETWORK_NOT_READY = "network-not-ready"
    """The network did not let the target take over its ports in time."""
    AGAINST_RULE = "against-rule"
    """Another VM of an anti-affinity group came to the target meanwhile."""
    FUNCTION_NOT_FREE = "function-not-free-there"
    """The target does not have a virtual function that it needs free for it."""
    LIVE_FORBIDDEN = "live-forbidden"
    LIVE_FAILED = "live-failed"
    CANCELLED = "cancelled"
    ENDED_BY_ITSELF = "ended-by-itself"


def _deletion_text(fields: Mapping[str, Value]) -> str:
    if not fields["hosts"]:
        return f"VM {fields['vm']} is being deleted: no host runs it, and it goes once the controllers have seen that"
    return (
        f"VM {fields['vm']} is being deleted: {fields['hosts']} may still run it; it goes, and its name is free, once "
        "it has stopped there or the host is fenced"
    )


def _deletion_remedy(fields: Mapping[str, Value]) -> str:
    if not fields["hosts"]:
        return "wait; if it stays, see with outlive status whether the cluster is paused"
    return f"wait; if {fields['host']} does not answer: outlive fence {fields['host']} --reason ..."


TABLE: Final[Table] = {
    VmReason.STOPPED_BY_SPEC: Template("spec.powerState is stopped"),
    VmReason.STOPPED_BY_DRAIN: Template(
        lambda fields: (
            f"its host was drained, and {fields.get('why', 'no other host had room')}; "
            "it starts again once its host is ready"
        )
    ),
    VmReason.TO_BE_DISABLED: Template("it is to be disabled"),
    VmReason.CRASHED: Template("its domain ended by itself ({crashes} in a row); it is started again after {wait_s} s"),
    VmReason.CLUSTER_PAUSED: Template("it is started once the pause of the cluster ends"),
    VmReason.CLUSTER_FROZEN: Template(
        "the cluster is disarmed (freeze): VMs stay as they are until it is armed", "outlive arm --cluster"
    ),
    VmReason.GUARD_GAVE_UP: Template(
        "the guard of {host} could not empty it in time, and lets nothing start there before it has booted",
        "reboot {host}",
    ),
    VmReason.LOCKS_UNREADABLE: Template("the locks on its disks could not be looked at: {error}", "check the storage"),
    VmReason.ISOLATION_UNCONFIRMED: Template(
        "whether all of storage and network has heard of which hosts are shut out is not known: {error}",
        "check the storage, and which program isolates hosts from it, or reboot the isolated host",
    ),
    VmReason.LOCK_NOT_REMOVED: Template(
        "lock {lock}{owner} could not be removed: {error}", "end who has the disk open, or check the storage"
    ),
    VmReason.LOCK_FOREIGN: Template(
        "lock {lock}{owner} says that somebody else may be writing",
        "see who has its disk open and end that, or prove that host dead (outlive fence HOST --reason ...)",
    ),
    VmReason.LOCK_SHARED: Template(
        "lock {lock}{owner} may be that of {user}, which has the same disk",
        "take the disk out of the definition of one of them (outlive vm define), or undefine that one",
    ),
    VmReason.DISK_MISSING: Template(
        "{error}", "create the disk or restore it, or correct the VM's disks (outlive vm define)"
    ),
    VmReason.DEFINITION_INVALID: Template("{problem}", "correct its definition (outlive vm define)"),
    VmReason.DISK_NOT_SHARED: Template(
        "disk {disk} is that of {user} as well, and not both share it",
        "name it in spec.sharedDisks of both, or take it out of the definition of one of them",
    ),
    VmReason.LOCK_UNCONFIRMED: Template(
        "lock {lock}{owner} may be in use: {host} lives, and its figures have yet to say that {vm} is not on it"
    ),
    VmReason.HANDOVER_LATE: Template(
        "it was handed over to {target} and stands still: after {limit_s} s {target} does not run it yet",
        "check the network of moves, and {target}",
    ),
    VmReason.STILL_HERE: Template("a domain of it is still on {host}", "outlive vm stop, then repeat"),
    VmReason.DEVICE_REFUSED: Template("{error}", "see its definition, its guest, and libvirt's log on its host"),
    VmReason.FUNCTION_NOT_FREE: Template("{why}", "outlive host functions {host}"),
    VmReason.AGAINST_AFFINITY: Template(
        "{why}",
        "move it to a host that its rules allow (outlive vm move VM), or change the rule; then request its start",
    ),
    VmReason.FOREIGN_DOMAIN: Template(
        "domains that Outlive did not make run on its host and may be VMs of the cluster: {domains}",
        "wait until the daemon has looked, and end those that do not end by themselves",
    ),
    VmReason.NAME_RUNS: Template(
        "another run of its name may not have ended: {why}", "wait until its host has ended it, or end it there"
    ),
    VmReason.NOT_ENDED: Template(
        "its host does not know whether its domain, which was to end, has ended; it is started once that is known",
        "see the hypervisor's log on its host, or reboot the host",
    ),
    VmReason.BEING_DELETED: Template(_deletion_text, _deletion_remedy),
    VmReason.STORAGE_LOST: Template(
        "its disks do not serve it: {why}; {then}",
        "check its storage, and its host's network to it; to have it start elsewhere, set spec.recovery.storageLost",
    ),
    VmReason.LEFT_STORAGE: Template("its disks did not serve it on {host}: {why}", "check the storage of {host}"),
    VmReason.NOT_CREATED: Template("{problem}", "see the hypervisor's log on its host"),
    VmReason.NOT_STARTED: Template("{host} did not start it, or died before"),
    VmReason.START_FAILED: Template(
        "{host} could not start it in {tries} tries: {problem}", "remove the cause, then request its start"
    ),
    OrderReason.STARTS_AFTER: Template("starts after {others}; it waits for at most {limit_s} s"),
    OrderReason.STARTS_WITHOUT: Template("starts without {others}"),
    OrderReason.MISSING: Template("does not exist"),
    OrderReason.NOT_WANTED: Template("is not wanted to run"),
    OrderReason.FAILED: Template("has failed: {why}"),
    OrderReason.DRAINED: Template("was stopped when {host} was emptied"),
    OrderReason.HELD: Template("is held: {code}: {why}"),
    OrderReason.WAITS: Template("waits itself for {others}"),
    OrderReason.NOT_SEEN: Template("is with {host}, and was not seen running there"),
    OrderReason.TO_START: Template("is to start on {host}"),
    OrderReason.NO_HOST: Template("has no host yet"),
    OrderReason.CIRCLE: Template("starts after it as well: {around} wait for each other, and the first by name goes"),
    OrderReason.NO_LIMIT: Template("is not waited for: the limit is 0"),
    OrderReason.LATE: Template("was not seen running within {limit_s} s{why}"),
    MigrationReason.SELF_TARGET: Template("its target is its source"),
    MigrationReason.PEER_TIMEOUT: Template("the other side did not go on in time"),
    MigrationReason.TARGET_CHANGED: Template("it is meant for another host by now"),
    MigrationReason.TARGET_LOST: Template("its target was lost"),
    MigrationReason.CANNOT_RECEIVE: Template("{host} cannot receive it: {problem}"),
    MigrationReason.NETWORK_NOT_READY: Template(
        "its network was not ready on {host} within {limit_s} s: {problem}", "outlive network check; then move it again"
    ),
    MigrationReason.AGAINST_RULE: Template("{why}"),
    MigrationReason.FUNCTION_NOT_FREE: Template("{why}", "outlive host functions {host}"),
    MigrationReason.LIVE_FORBIDDEN: Template("it may not be moved while it runs"),
    MigrationReason.LIVE_FAILED: Template("moving it while it runs failed"),
    MigrationReason.CANCELLED: Template("something else was asked for meanwhile"),
    MigrationReason.ENDED_BY_ITSELF: Template("it ended by itself before it was moved"),
}
