"""Why a VM may not be brought up on a host by its own rules, what it asks for in vain there, and rules that no host
can meet."""

from __future__ import annotations

import enum
from typing import Final

from outlive.resources.reasons.model import Table, Template


class PlaceReason(enum.StrEnum):
    """What of a VM's rules speaks against a host. The soft ones are reported, and forbid nothing."""

    NOT_ALLOWED = "not-allowed-there"
    UNSUITED = "not-suited"
    STORAGE_UNREACHED = "storage-unreached-there"
    NETWORK_UNREACHED = "network-unreached-there"
    FUNCTION_MISSING = "function-missing-there"
    """The host has no virtual function of that name, or of that PCI address."""
    FUNCTION_IN_USE = "function-in-use-there"
    """Another VM has it, or is on its way to it."""
    MOVED_DOWN = "moved-while-down"
    """A virtual function of it is a device of the guest, which nothing moves while it runs."""
    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"


class FailBackReason(enum.StrEnum):
    """Why a VM does not go back to a host that it prefers."""

    AGAINST_RULE = "failback-against-rule"
    NOT_OFFERED = "failback-not-offered"
    NO_ROOM = "failback-no-room"
    SLOT_STAYS = "failback-slot-stays"
    COVERAGE = "failback-coverage"
    NOT_LIVE = "failback-not-live"
    GROUP_STAYS = "failback-group-stays"
    GROUP_PREFERS = "failback-group-prefers"


class RuleConflict(enum.StrEnum):
    """Rules of VMs that cannot be met together."""

    BOTH_POLICIES = "rules-both-policies"
    CHAINED = "rules-chained"
    NO_COMMON_HOST = "rules-no-common-host"
    NO_ALLOWED_HOST = "rules-no-allowed-host"
    ZONES_DIFFER = "rules-zones-differ"
    TOO_MANY_MEMBERS = "rules-too-many-members"


TABLE: Final[Table] = {
    PlaceReason.NOT_ALLOWED: Template(
        "{vm} may not run on {host}, by its hostLimit or its strict preferred hosts: {hosts}",
        "name one of these hosts, or change spec.hostLimit or spec.preferredHosts",
    ),
    PlaceReason.UNSUITED: Template("{host} does not suit {vm}: {why}"),
    PlaceReason.STORAGE_UNREACHED: Template(
        "{host} does not reach the storage of {vm}: {place}",
        "check the storage, and the network of {host} to it: outlive why {host}",
    ),
    PlaceReason.NETWORK_UNREACHED: Template(
        "network {network} of {vm} does not reach {host}",
        "choose a host that it reaches, or label this one: spec.hostLabels of VirtualNetwork {network}",
    ),
    PlaceReason.FUNCTION_MISSING: Template(
        "{host} has no virtual function {function}, which {vm} needs",
        "choose a host that has it (outlive host functions), or have this one make it: links.sriov of its node.yaml",
    ),
    PlaceReason.FUNCTION_IN_USE: Template(
        "virtual function {function} of {host}, which {vm} needs, is of VM {other}",
        "choose another host, or move {other} away: outlive host functions {host}",
    ),
    PlaceReason.MOVED_DOWN: Template(
        "it is shut down for its moves, and started at the target: {functions} is passed through to it",
        "write <interface type='direct'> with mode='passthrough' to have it moved while it runs",
    ),
    PlaceReason.AFFINITY: Template(
        "{host} has no VM of affinity group {group} of {vm}, which is on {hosts}",
        "choose the host of its group, drain the host to move all of them, or make the policy soft-affinity",
    ),
    PlaceReason.ANTI_AFFINITY: Template(
        "{host} has {others} of anti-affinity group {group} of {vm}, or is to get it",
        "choose another host, or make the policy soft-anti-affinity",
    ),
    PlaceReason.SOFT_AFFINITY: Template(
        "{host} has no VM of soft affinity group {group} of {vm}, which is on {hosts}",
    ),
    PlaceReason.SOFT_ANTI_AFFINITY: Template(
        "{host} has {others} of soft anti-affinity group {group} of {vm}, or is to get it"
    ),
    FailBackReason.AGAINST_RULE: Template("{why}"),
    FailBackReason.NOT_OFFERED: Template(
        "placement does not offer {host}, or one that is to be kept apart from {vm} has a slot there",
        "outlive placement rank --vm {vm} --explain",
    ),
    FailBackReason.NO_ROOM: Template(
        "{host} has no room for {vm} beside its VMs and slots", "make room there, or add a host for slots"
    ),
    FailBackReason.SLOT_STAYS: Template(
        "slot {slot} of {vm} would not count for it there, and no other host has room for it",
        "add a host, or make room for a slot on one that {vm} may run on",
    ),
    FailBackReason.COVERAGE: Template("once it is on {host}, VMs would miss slots that they have now"),
    FailBackReason.NOT_LIVE: Template(
        "{vm} cannot move live now: it does not run, something is under way, its host has not joined or is to be "
        "emptied, or its migrationMethod is shutdown"
    ),
    FailBackReason.GROUP_STAYS: Template(
        "{vm} of its affinity group has not failback auto, and all of the group go together",
        "set spec.failback of {vm}, or: outlive group move",
    ),
    FailBackReason.GROUP_PREFERS: Template("the others of the affinity group of {vm} prefer where they are"),
    RuleConflict.BOTH_POLICIES: Template(
        "{vm} and {other} are together in affinity group {group} and apart in anti-affinity group {apart}",
        "take one of them out of one of the two groups, or make one policy soft",
    ),
    RuleConflict.CHAINED: Template(
        "affinity groups {groups} put {vm} and {other} together, and anti-affinity group {apart} keeps them apart",
        "take one of them out of one of the groups, or make one policy soft",
    ),
    RuleConflict.NO_COMMON_HOST: Template(
        "{vm} and {other} are together in affinity groups {groups} and have no host in common: {vm} may run on "
        "{hosts}, {other} on {others}",
        "give them a host in common in hostLimit and strict preferredHosts, or make the policy soft",
    ),
    RuleConflict.NO_ALLOWED_HOST: Template(
        "no host is at once in hostLimit and in the strict preferred hosts of {vm}, and reached by all its networks",
        "give these a host in common, or leave one out",
    ),
    RuleConflict.ZONES_DIFFER: Template(
        "{vm} and {other} are together in affinity groups {groups}, and are of zones {zone} and {zones}",
        "give them one zone, or make the policy soft",
    ),
    RuleConflict.TOO_MANY_MEMBERS: Template(
        "{count} VMs of anti-affinity group {group} may run on only {hosts}: {vms}",
        "allow them more hosts, take VMs out of the group, or make the policy soft-anti-affinity",
    ),
}
