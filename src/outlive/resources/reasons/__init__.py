"""Why something is as it is: stable codes with fields, and the one table that turns a code into words.

A decision returns a ``Reason``: a code and the values that belong to it. ``render`` makes the sentence and the remedy
from it, for ``outlive why``, stories, faults, events, holds and errors alike; nothing else writes such a sentence, and
nothing compares or parses one. What is stored in a resource is the code (field ``reason``) with the rendered
``message`` and ``remedy`` beside it, as in a condition of Kubernetes; programs read the code.

Each family of codes is one module of this package: an enum and its part of the table. Codes are unique over all
families; a released code keeps its meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

import enum
from types import MappingProxyType
from typing import Final

from outlive.resources.reasons import coverage, inventory, network, places, recovery, vm
from outlive.resources.reasons.coverage import AllocationFault, CoverageReason
from outlive.resources.reasons.model import Message, Reason, Table, Template, Value, fill, join_names
from outlive.resources.reasons.network import NetworkReason
from outlive.resources.reasons.places import FailBackReason, PlaceReason, RuleConflict
from outlive.resources.reasons.recovery import HoldReason, PlanReason, SlotReason, StepReason, StoryReason
from outlive.resources.reasons.vm import BLOCKED_BY_OTHERS as BLOCKED_BY_OTHERS
from outlive.resources.reasons.vm import LOCKED as LOCKED
from outlive.resources.reasons.vm import OF_EVERY_HOST as OF_EVERY_HOST
from outlive.resources.reasons.vm import MigrationReason, OrderReason, VmReason

if TYPE_CHECKING:
    from outlive.resources.reasons.failover_events import EVENTS, FULL_PROTECTION, FailoverEvent
    from outlive.resources.reasons.faults import FAULTS, FULL_HEALTH, POWER_CODES, FaultCode, Severity, fault_message
    from outlive.resources.reasons.faults import severity_of
    from outlive.resources.reasons.inventory import ImportNotice
    from outlive.resources.reasons.model import NAMED
    from outlive.resources.reasons.obstacles import Obstacle, describe_many, describe_one
    from outlive.resources.reasons.recovery import MAY_RUN, REPORTED_OF_HOST
else:
    __getattr__ = load_exports(__name__)

TABLE: Final[Table] = MappingProxyType(
    {**coverage.TABLE, **recovery.TABLE, **vm.TABLE, **inventory.TABLE, **places.TABLE, **network.TABLE}
)
"""Every code of every family."""


def make_reason(code: enum.StrEnum, /, **fields: Value) -> Reason:
    """A code with its values."""
    return Reason(code.value, fields)


def render(reason: Reason) -> Message:
    """The sentence and the remedy of a reason. ``KeyError`` for an unknown code or a missing field."""
    template = _BY_CODE[reason.code]
    return Message(fill(template.text, reason.fields), fill(template.remedy, reason.fields))


_BY_CODE: Final = {code.value: template for code, template in TABLE.items()}
