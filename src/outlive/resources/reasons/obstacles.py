"""What keeps a host or a slot from serving a VM: codes, and how each reads of one and of many.

An explanation gives the first obstacle, in the order of the codes (docs/reference/failover-analysis.md#explanations).
Codes that a rule or placement gives reasons for read as these do; several are named as a coverage reason is, which is
about a VM.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from outlive.resources.reasons.model import Template, Value, fill


class Obstacle(enum.StrEnum):
    """What rules a host or a slot out, in the order in which it is looked for."""

    MEMBER = "already-member"
    NOT_READY = "slot-not-ready"
    TOO_SMALL = "slot-too-small"
    MEMBERS_CLASH = "members-clash"
    RULE = "rule"
    APART = "kept-apart"
    PLACEMENT_ERROR = "placement-unavailable"
    PLACEMENT = "refused-by-placement"
    NO_CAPACITY = "no-capacity"
    ZERO_SIZE = "zero-size"
    OWN_CLASH = "memberships-clash"
    NOTHING = "nothing"


def _member_text(fields: Mapping[str, Value]) -> str:
    return f"it is a member, but the slot {fields['but']}" if fields["but"] else "it is a member, and the slot counts"


def _capacity_text(fields: Mapping[str, Value]) -> str:
    if not fields["free"]:
        return f"needs {fields['needs']}; how much is free there is not known"
    if fields["over"]:
        return f"needs {fields['needs']}, and {fields['over']} more than it has are taken already"
    return f"needs {fields['needs']}, has {fields['free']} free{fields['beside']}"


def _refusal_text(fields: Mapping[str, Value]) -> str:
    step, message = fields["step"], fields["message"]
    if not step:
        return "placement does not offer this host"
    return f"{step}: {message}" if message else str(step)


ONE: Final[Mapping[Obstacle, Template]] = {
    Obstacle.MEMBER: Template(_member_text),
    Obstacle.NOT_READY: Template("the slot is not ready: it counts for nobody and takes nobody"),
    Obstacle.TOO_SMALL: Template("holds {holds}, the VM needs {needs}"),
    Obstacle.MEMBERS_CLASH: Template("a rule is broken for a member: {breach}"),
    Obstacle.RULE: Template("rule {rule} would be broken: {breach}"),
    Obstacle.APART: Template("{apart}"),
    Obstacle.PLACEMENT_ERROR: Template("{error}"),
    Obstacle.PLACEMENT: Template(_refusal_text),
    Obstacle.NO_CAPACITY: Template(_capacity_text),
    Obstacle.ZERO_SIZE: Template("the VM declares {declares}"),
    Obstacle.OWN_CLASH: Template("a rule is broken for the VM itself: {breach}"),
    Obstacle.NOTHING: Template("{nothing}"),
}
"""Of one host or slot."""

_RULES: Final[Mapping[Value, str]] = {1: "are its own", 2: "have its slots", 4: "run its co-users"}
_REFUSALS: Final[Mapping[Value, str]] = {
    "bad-condition": "are not ready ({message})",
    "not-forced": "are none of those that the VM may run on",
    "no-high-availability": "take no slots (highAvailability is off)",
    "in-maintenance": "are in maintenance",
    "project-not-allowed": "are for other projects",
    "aggregate-reserved": "are in aggregates of other projects",
    "unmapped-hypervisor": "have a hypervisor type that is not known",
    "no-accelerators": "have no accelerators",
    "excluded": "are excluded by the pipeline",
    "wrong-zone": "are not in zone {zone}",
}
"""Placement's code → how it reads after a number of hosts."""


def _ruled_out_text(fields: Mapping[str, Value]) -> str:
    return _RULES.get(fields["rule"], "are ruled out by the rules")


def _refused_many_text(fields: Mapping[str, Value]) -> str:
    if not fields["step"]:
        return "are not offered by placement"
    known = _REFUSALS.get(fields["code"])
    if known is not None:
        return fill(known, fields)
    return f"are refused by {fields['step']}" + (f" ({fields['message']})" if fields["message"] else "")


MANY: Final[Mapping[Obstacle, Template]] = {
    Obstacle.MEMBER: Template("have it as a member"),
    Obstacle.NOT_READY: Template("are not ready"),
    Obstacle.TOO_SMALL: Template("are smaller than {needs}"),
    Obstacle.MEMBERS_CLASH: Template("have a member for which a rule is broken"),
    Obstacle.RULE: Template(_ruled_out_text),
    Obstacle.APART: Template("are too near, or too far, by failure domains or server group"),
    Obstacle.PLACEMENT_ERROR: Template("could not be asked about"),
    Obstacle.PLACEMENT: Template(_refused_many_text),
    Obstacle.NO_CAPACITY: Template("have less than {room} free"),
    Obstacle.ZERO_SIZE: Template("cannot hold a VM without size"),
    Obstacle.OWN_CLASH: Template("would do, were no rule broken for the VM itself"),
    Obstacle.NOTHING: Template("would do"),
}
"""Of several, after their number."""


def describe_one(obstacle: Obstacle, **fields: Value) -> str:
    """What rules one host or slot out."""
    return fill(ONE[obstacle].text, fields)


def describe_many(obstacle: Obstacle, **fields: Value) -> str:
    """The same of several, to follow their number."""
    return fill(MANY[obstacle].text, fields)
