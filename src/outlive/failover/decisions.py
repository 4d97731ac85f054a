"""The decisions of failover by name, for ``outlive decide`` and for replay.

Each is the function that the product itself uses, on plain views (docs/design/failover.md#decisions).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.failover.analysis.bound import BoundInput, BoundResult, compute_bound
from outlive.failover.analysis.coverage import CoverageInput, CoverageResult, compute_coverage
from outlive.failover.analysis.drain.inputs import DrainInput, DrainResult
from outlive.failover.analysis.drain.order import order_drain
from outlive.failover.analysis.explain.model import CoverageExplanation, ExplainInput
from outlive.failover.analysis.explain.vm import explain
from outlive.failover.analysis.survival import FailuresInput, FailuresResult, survive
from outlive.failover.analysis.tolerance import ToleranceInput, ToleranceResult, compute_tolerance
from outlive.failover.certificate import CertifyInput, CertifyResult, certify
from outlive.failover.check import CheckInput, CheckResult, check
from outlive.failover.failback import FAIL_BACK
from outlive.failover.model import SlotView
from outlive.failover.protection import required_slots
from outlive.failover.rebalance import REBALANCE
from outlive.failover.reconciler.context import DECISIONS as RECONCILER_DECISIONS
from outlive.failover.rules import find_eligible_reservations, is_vm_eligible_for_reservation
from outlive.failover.slots import ResolvedSize, resolve_size
from outlive.failover.topology import Topology
from outlive.failover.verify.check import CertificateVerdict, VerifyInput
from outlive.failover.verify.check import decide as verify
from outlive.placement import VmView, groups_by_flavor
from outlive.resources import FlavorGroupSpec
from outlive.runtime import Decision


class EligibleInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """May this VM join this slot?"""

    vm: VmView
    slot: SlotView
    slots: tuple[SlotView, ...] = ()
    topology: Topology = Topology()


class EligibleResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether it may."""

    eligible: bool


class FindInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which slots may this VM join?"""

    vm: VmView
    slots: tuple[SlotView, ...] = ()
    topology: Topology = Topology()


class FindResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names of the slots, in the order in which they were given."""

    slots: tuple[str, ...]


class RequiredInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many slots does a VM of this flavor need under these patterns?"""

    flavor: str
    patterns: dict[str, int]


class RequiredResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The count."""

    required: int


class ResolveInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How large is the slot of this VM? Without groups it is as large as the VM."""

    vm: VmView
    groups: tuple[FlavorGroupSpec, ...] | None = None


def _check_eligible(given: EligibleInput) -> EligibleResult:
    topology = given.topology
    answer = is_vm_eligible_for_reservation(given.vm, given.slot, given.slots, topology=topology)
    return EligibleResult(eligible=answer)


def _find(given: FindInput) -> FindResult:
    topology = given.topology
    found = find_eligible_reservations(given.vm, given.slots, topology=topology)
    return FindResult(slots=tuple(slot.name for slot in found))


def _count_required(given: RequiredInput) -> RequiredResult:
    return RequiredResult(required=required_slots(given.flavor, given.patterns))


def _resolve_size(given: ResolveInput) -> ResolvedSize:
    groups = None if given.groups is None else groups_by_flavor(given.groups)
    return resolve_size(given.vm, groups)


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    *RECONCILER_DECISIONS,
    Decision("failover.eligible", _check_eligible, EligibleInput, EligibleResult, "Whether a VM may join a slot"),
    Decision("failover.find", _find, FindInput, FindResult, "Which slots a VM fits into and may join"),
    Decision("failover.check", check, CheckInput, CheckResult, "Whether all allocations are right, and who has to go"),
    Decision("failover.required", _count_required, RequiredInput, RequiredResult, "How many slots a flavor's VMs need"),
    Decision("failover.resolve_size", _resolve_size, ResolveInput, ResolvedSize, "How large a VM's slot is"),
    Decision("failover.coverage", compute_coverage, CoverageInput, CoverageResult, "Who is covered, and why not"),
    Decision(
        "failover.explain", explain, ExplainInput, CoverageExplanation, "Why a VM has no slot, and what would help"
    ),
    Decision(
        "failover.tolerance", compute_tolerance, ToleranceInput, ToleranceResult, "Host failures that VMs survive"
    ),
    Decision("failover.survive", survive, FailuresInput, FailuresResult, "Who is lost when hosts fail"),
    Decision("failover.certify", certify, CertifyInput, CertifyResult, "What may be claimed of a state"),
    Decision(
        "failover.verify", verify, VerifyInput, CertificateVerdict, "Whether a certificate is right about a state"
    ),
    Decision("failover.drain", order_drain, DrainInput, DrainResult, "In what order hosts can be emptied"),
    FAIL_BACK,
    REBALANCE,
    Decision("failover.bound", compute_bound, BoundInput, BoundResult, "The least that any valid plan needs"),
)
"""All of them."""
