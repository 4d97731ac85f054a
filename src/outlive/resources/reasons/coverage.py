"""Why a VM does not have the slots that it needs, and why a slot that lists it does not count for it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from outlive.resources.reasons.model import Table, Template, Value


class CoverageReason(enum.StrEnum):
    """Why a VM gets no slot, or no further one."""

    ZERO_SIZE = "zero-size"
    PLACEMENT_UNAVAILABLE = "placement-unavailable"
    MEMBERSHIPS_CLASH = "memberships-clash"
    ONE_PER_HOST = "one-new-slot-per-host"
    NO_CAPACITY = "no-capacity"
    REFUSED = "refused-by-placement"
    RULES = "rules-exclude-all-hosts"
    NO_HOSTS = "no-hosts"
    WAITING = "waiting-for-a-cycle"
    STORE_FAILED = "store-failed"
    UNLISTED_AND_MOVED = "unlisted-and-moved"
    HOST_UNKNOWN = "host-of-vm-unknown"
    DISPUTED = "location-disputed"
    NOT_REPORTED = "vm-not-reported"
    UNPROTECTED = "not-protected"
    """It needs none: somebody has taken it out of protection."""
    DELETED = "deleted"
    """It needs none: somebody has deleted it, and it goes once no host may run it."""


UNPLACED: Final = frozenset({CoverageReason.HOST_UNKNOWN, CoverageReason.DISPUTED, CoverageReason.NOT_REPORTED})
"""Why it cannot be said where a VM is that is to run; fields ``host``, the recorded one, and ``reported``."""


class AllocationFault(enum.StrEnum):
    """Why a slot that lists a VM does not count for it, in the order in which it is looked at.

    The sentences follow the name of the slot, or "it".
    """

    ELSEWHERE = "recorded-elsewhere"
    NOT_READY = "slot-not-ready"
    NOT_ALLOWED = "host-not-allowed"
    TOO_SMALL = "slot-too-small"


def _describe_unready(fields: Mapping[str, Value]) -> str:
    return f"is not ready: {fields['why']}" if fields["why"] else "is not ready"


def _ready_remedy(fields: Mapping[str, Value]) -> str:
    return (
        f"see Hypervisor/{fields['host']}"
        if fields["why"]
        else f"see the condition Ready of Reservation/{fields['slot']}"
    )


def _declared_text(fields: Mapping[str, Value]) -> str:
    group = f", its group {fields['group']} {fields['group_size']}" if fields["group"] else ""
    return f"the VM declares {fields['size']}{group}"


def _clash_text(fields: Mapping[str, Value]) -> str:
    where = f": {fields['where']} occurs more than once" if fields.get("where") else ""
    return f"a rule is broken for the VM, so that its slots promise nothing{where}"


def _hosts_text(fields: Mapping[str, Value]) -> str:
    """How placement and the rules divide the hosts for one new slot.

    Fields: ``total`` and ``offered`` hosts; ``refused``: for each filter step the hosts that it refused; of those that
    are offered ``own`` runs the VM, ``by_rules`` are excluded (``example``: one of them, with the reason),
    ``already_new`` received a slot in this cycle, and ``full`` have no room for ``size``; ``roomiest``: the host that
    comes closest, with its free amounts.
    """
    text = f"placement offers {fields['offered']} of {fields['total']} hosts"
    refused = fields["refused"]
    if isinstance(refused, tuple) and refused:
        text += f" (refused by {', '.join(refused)})"
    parts = []
    if fields["own"]:
        parts.append("1 runs the VM itself")
    if fields["by_rules"]:
        parts.append(f"{fields['by_rules']} excluded by the rules (for example {fields['example']})")
    if fields["already_new"]:
        parts.append(f"{fields['already_new']} received a new slot in this cycle")
    if fields["full"]:
        parts.append(f"{fields['full']} without room for {fields['size']}")
    if parts:
        text += f"; of these {', '.join(parts)}"
    if fields["roomiest"]:
        text += f"; the most room is on {fields['roomiest']}"
    return text


TABLE: Final[Table] = {
    CoverageReason.ZERO_SIZE: Template(_declared_text, "give flavor {flavor!r} cpu and memory above zero"),
    CoverageReason.PLACEMENT_UNAVAILABLE: Template("{error}", "the next cycle asks again; see the log of placement"),
    CoverageReason.MEMBERSHIPS_CLASH: Template(
        _clash_text, "`outlive failover check` names the rule; the next clean-up takes out who is at fault"
    ),
    CoverageReason.ONE_PER_HOST: Template(
        _hosts_text, "wait for the next cycle, or set failover.limitOneNewReservationPerHypervisor to false"
    ),
    CoverageReason.NO_CAPACITY: Template(_hosts_text, "free {size} on one more host, or add a host"),
    CoverageReason.REFUSED: Template(
        _hosts_text, "`outlive failover explain {vm}` says which step refuses which host, and what would help"
    ),
    CoverageReason.RULES: Template(
        _hosts_text, "add a host: {total} are too few to keep this VM, its slots and their members apart"
    ),
    CoverageReason.NO_HOSTS: Template("there are no hosts", "add hosts"),
    CoverageReason.STORE_FAILED: Template("{doing} failed: {error}", "the next cycle tries again"),
    CoverageReason.UNLISTED_AND_MOVED: Template(
        "no VM source lists the VM, and it runs on {reported}, not on {host}",
        "restore the VM source; the next cycle puts its slots right",
    ),
    CoverageReason.HOST_UNKNOWN: Template(
        "the VM is recorded on {host}, and there is no such host",
        "register the host again, or correct where the VM is recorded",
    ),
    CoverageReason.DISPUTED: Template(
        "the VM is recorded on {host}, and {reported} reports it",
        "find out where it runs, and correct the record or the host",
    ),
    CoverageReason.NOT_REPORTED: Template(
        "the VM is recorded on {host}, and no host reports it",
        "see whether it runs on {host}; start it, or record that it is stopped",
    ),
    CoverageReason.UNPROTECTED: Template("it was taken out of protection: {why}", "outlive protect {vm}"),
    CoverageReason.DELETED: Template("it is being deleted, and needs no slots", "outlive why {vm}"),
    AllocationFault.ELSEWHERE: Template(
        "lists it as on {recorded} and it runs on {at}", "wait for the next clean-up, which takes it out of the slot"
    ),
    AllocationFault.NOT_READY: Template(_describe_unready, _ready_remedy),
    AllocationFault.NOT_ALLOWED: Template(
        "is on {host} and it may run on {limit} only", "wait for the next clean-up, or change hostLimit of the VM"
    ),
    AllocationFault.TOO_SMALL: Template(
        "holds {holds} and it needs {needs}", "wait for the next clean-up, which looks for a slot that is large enough"
    ),
    CoverageReason.WAITING: Template("it has not been its turn", "wait for a cycle, or raise failover.maxVMsToProcess"),
}
