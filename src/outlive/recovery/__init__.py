"""From a proof of death to running VMs: claims the promised slots, assigns, and follows until they are seen running."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.recovery.act import RecoveryActions
    from outlive.recovery.balance import PLANNED, BalancingPlan, BalancingState, encode_state, fail_back_input, is_moved
    from outlive.recovery.balance import explain_unfinished, move_together, rebalance_input, request_move
    from outlive.recovery.balance import resting_reason
    from outlive.recovery.cluster_gauges import ClusterFigures, ClusterGauges, cluster_metrics
    from outlive.recovery.cluster_health import NOT_HEARD, WEIGHTS, CoverageView, HealthIssue, count_issues
    from outlive.recovery.cluster_health import covered_by_hosts, is_provable, judge_health, view_coverage
    from outlive.recovery.controller import SEARCHES, RecoveryController, find_unplaceable, select_longest_waiting
    from outlive.recovery.deaths import Death, FlapView, death_of, failures_of, find_died_together, release_host
    from outlive.recovery.deaths import update_quarantine
    from outlive.recovery.descheduling import OwnVmMoves
    from outlive.recovery.faults import RecoveryFaults, active_faults
    from outlive.recovery.groups import GroupView, group_moves, groups_in
    from outlive.recovery.in_flight import InFlightRoom, build_in_flight
    from outlive.recovery.informers import ASSIGNED_INDEX, FAILBACK_INDEX, RecoveryInformers, slot_indexes, vm_indexes
    from outlive.recovery.model import ActionKind, AffectedVm, Free, HolderState, HostHealth, HostState, RecoveryAction
    from outlive.recovery.model import RecoveryPlan, RecoveryView, SlotState
    from outlive.recovery.plan import order_restarts, plan_recovery
    from outlive.recovery.rebalancer import LOOK_S, Rebalancer
    from outlive.recovery.requests import PROOF_S, SILENT_S, Responder, turn_of
    from outlive.recovery.states import ASSIGN, PHASES, REMOVE, AssignView, ClaimView, RemoveView, enter_assigned
    from outlive.recovery.states import enter_dropped, enter_held, enter_recovered, find_losing_fence, is_held_so
    from outlive.recovery.without_slot import FENCE_RECOVER, LostVm, RecoverConfig, RecoverInput, recover
else:
    __getattr__ = load_exports(__name__)
