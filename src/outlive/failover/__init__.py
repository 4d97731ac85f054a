"""Failover reservations: slots on other hosts that are reserved for protected VMs and kept valid.

``model`` holds the views that all decisions see. Decisions are pure: ``rules`` (may a VM have a slot), ``planner``
(what is to be done), ``analysis`` (coverage, survival, explanations, what-if) and ``certificate``. ``verify`` checks
certificates and shares nothing with the others. ``reconciler`` writes, ``report`` shows.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.assembly import HOST_INDEX, Failover
    from outlive.failover.calls import GENERAL_PIPELINE, HANA_PIPELINE, Call, Caller, common_host, forced_hosts
    from outlive.failover.calls import pins_projects, pipeline_for, placement_class, places_lost, write_candidates
    from outlive.failover.certificate import Certificate, CertifyInput, CertifyResult, LackReason, certify
    from outlive.failover.certificate import certify_input, encode_certificate, without_room
    from outlive.failover.check import CheckInput, Violation, ViolationKind, find_separation_violations
    from outlive.failover.config import DEFAULT_REQUIREMENTS, SECRET_KEYS, SECTIONS, FailoverConfig, FailoverSettings
    from outlive.failover.config import FailoverUpkeepSettings, RepackSettings
    from outlive.failover.conflicts import NEW_SLOT, Breach, ConflictIndex
    from outlive.failover.culprits import Culprit, find_culprits, find_removals, least_hitting_set, remove_memberships
    from outlive.failover.decisions import DECISIONS
    from outlive.failover.failback import FAIL_BACK, FailBackInput, FailBackObstacle, FailBackResult, VmMove, fail_back
    from outlive.failover.fleet import FleetIndex, FreeAmounts
    from outlive.failover.locations import Disagreement, Locations, OnHypervisors, locate, merge
    from outlive.failover.model import HostView, SlotView, host_view
    from outlive.failover.offers import InProcessPlacement, Offers, WithCandidates, claim_of, equivalence_key
    from outlive.failover.offers import free_amounts, free_capacity, gather_offers, offer_of
    from outlive.failover.ports import Computer, Inline, PlacementPort
    from outlive.failover.protection import LEVELS_LIMIT, LEVEL_NAME, PATTERNS_LIMIT, PRIORITY_LIMIT, Demand, Demands
    from outlive.failover.protection import LevelSettings, ProtectionSettings, check_protection, check_vm_protection
    from outlive.failover.protection import required_slots, restart_order
    from outlive.failover.rebalance import REBALANCE, BalanceReason, BalancedHost, BalancingMove, RebalanceInput
    from outlive.failover.rebalance import RebalanceResult, allocated_by_host, fullest_share
    from outlive.failover.rules import find_eligible_reservations, is_large_enough, is_vm_eligible_for_reservation
    from outlive.failover.rules import serves, slot_counts, validate_failover_reservation_resources
    from outlive.failover.separation import ServerGroup, groups_of
    from outlive.failover.slots import OverbookedHosts, ResolvedSize, apply_closed_hosts, enlarge_for_vm, is_slot
    from outlive.failover.slots import resolve_size, resource_group, slot_view, choose_excess_slots, unschedulable_hosts
    from outlive.failover.snapshot import Documents, Snapshot, coverage_of, find_refusals, gather, plan_input
    from outlive.failover.snapshot import repack_input, snapshot_of
    from outlive.failover.topology import HOSTS_ALONE, Topology, TopologyChoice, iter_bits
else:
    __getattr__ = load_exports(__name__)
