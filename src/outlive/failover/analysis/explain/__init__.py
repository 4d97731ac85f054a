"""Why a VM has no slot, host by host and slot by slot, and the cheapest thing that would give it one.

Reasons, remedies and trials are pure (docs/reference/failover-analysis.md#explanations). ``placement`` gathers what
they need.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.analysis.explain.fleet import FleetExplanation, adopt_whole_remedy, explain_fleet
    from outlive.failover.analysis.explain.model import Action, AddHosts, AnswerSource, CandidateReason
    from outlive.failover.analysis.explain.model import CoverageExplanation, ExplainInput, ExplainedFleet, FreeRoom
    from outlive.failover.analysis.explain.model import GiveSize, HostReady, MoveMembership, NewHost, PlacementAnswer
    from outlive.failover.analysis.explain.model import Remedy, RemedyKind, SlotReady
    from outlive.failover.analysis.explain.placement import EngineAnswers, answer_of, explainer_of, hypervisor_of
    from outlive.failover.analysis.explain.placement import state_of
    from outlive.failover.analysis.explain.vm import Explainer
else:
    __getattr__ = load_exports(__name__)
