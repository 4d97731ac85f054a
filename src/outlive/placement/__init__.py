"""Which hosts may take a VM or a slot, best first: filters and weighers over columns of hosts."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.placement.arrivals import InFlightController, judge_arrival
    from outlive.placement.columns import BoolVector
    from outlive.placement.controllers import ALL_GROUPS, FlavorGroupController, PipelineController, install_shipped
    from outlive.placement.controllers import pipeline_metrics
    from outlive.placement.decisions import DECISIONS
    from outlive.placement.descheduling import ACTIVE, NOVA, OWN, Descheduler, DeschedulingController
    from outlive.placement.descheduling import judge_descheduling
    from outlive.placement.detectors import AvoidHighSteal, CompletedMove, Detection, merge_detections
    from outlive.placement.detectors import moves_in_a_circle
    from outlive.placement.domains import Domains
    from outlive.placement.engine import STEP_ERRORS, Engine
    from outlive.placement.errors import BadRequest, GatheringRefused, InvalidOptions, PipelineNotReady, RunRefused
    from outlive.placement.errors import StepFailed, UnknownPipeline
    from outlive.placement.explanation import Explanation, explain, explanation_text
    from outlive.placement.external import ExternalAnswer, decode_answer, decode_request, encode_request
    from outlive.placement.flavor_groups import groups_by_flavor, is_valid
    from outlive.placement.fleet import Fleet
    from outlive.placement.history import HistoryCleanup, HistoryWriter, RecordedRun, is_stale, with_answer
    from outlive.placement.in_flight import InFlightWriter, own_reservations, room_for
    from outlive.placement.knowledge import FLAVOR_GROUPS, NEVER, digest_of, record, version_of, with_records
    from outlive.placement.ledger import LedgerEntry
    from outlive.placement.metrics import WeightOrder, select_heaviest
    from outlive.placement.overcommit import OvercommitController, overcommit_of
    from outlive.placement.pending import Change
    from outlive.placement.pipelines import FILTERS, WEIGHERS, BoundFilter, BoundWeigher, PipelineTable, admit, build
    from outlive.placement.pipelines import decode_parameters
    from outlive.placement.ports import VmLocation, VmMoves
    from outlive.placement.quota import QuotaCommitment, QuotaDemand, Quotas, VmSize, balance_of, decide_quota
    from outlive.placement.ranking import KEY_BITS, Ranking, RankingDocument, best_first, explain_nowhere, host_hashes
    from outlive.placement.ranking import squash, tie_keys
    from outlive.placement.records import HOST_UTILIZATION, LONG_TERM_CONTENTION, PROJECT_NOISINESS
    from outlive.placement.records import SHORT_TERM_CONTENTION, HostContention, HostUtilization, KnowledgeRecords
    from outlive.placement.records import ProjectNoisiness
    from outlive.placement.request import DOMAIN_NAME_HINT, GROUP_HINT, HANA_SPEC, HANA_TRAIT, HYPERVISOR_TYPE
    from outlive.placement.request import INTERNAL_CALLS, SILENT, SOURCE_HOST_HINT, Destination, InstanceGroup, Intent
    from outlive.placement.request import PlacementOptions, PlacementRequest, image_properties
    from outlive.placement.reservations import AMOUNT_LIMIT, LOCKED, CapacityQuery, arrival_host, blocked_hosts
    from outlive.placement.reservations import blocks_somebody, capacity_query, has_landed, is_locked, is_ready
    from outlive.placement.reservations import placed_on, unused_amounts
    from outlive.placement.rule_conflicts import HardGroups, concerned_vm, find_contradictions
    from outlive.placement.rules import AFFINITY, ANTI_AFFINITY, HARD, Group, HostFacts, Peers, RuleVerdict
    from outlive.placement.rules import VmConstraints, bound_together, demands_of, describe_network_limits, facts_of
    from outlive.placement.rules import find_companions, find_objections, function_refusal, judge, judge_together
    from outlive.placement.rules import may_run_on, satisfies, storage_refusal
    from outlive.placement.service import PlacementService, shuffle_top
    from outlive.placement.settings import MIB, OvercommitMapping, PlacementSettings
    from outlive.placement.shipped import VMWARE_GENERAL_PURPOSE, shipped_pipelines
    from outlive.placement.steps import FactsFilter, PipelineRun, Weigher
    from outlive.placement.tracker import FAILED, PlacementTracker, TrackingOutcome
    from outlive.placement.vms import MILLI, FlavorRow, ServerRow, VMSource, VmList, VmView, amounts_of, join_row
    from outlive.placement.vms import join_rows, list_resources, parse_extra_specs, view_of_resource, vm_of_resource
    from outlive.placement.vms import vm_of_row
    from outlive.placement.vmware import AvoidLongTermContention, AvoidShortTermContention, ContentionParams
    from outlive.placement.vmware import NoisinessParams, Scale, SpreadNoisyProjects, VmwareBinPack, min_max_scale
    from outlive.placement.weighers import BinPack, CommitmentParams, CommittedReservations, FailoverEvacuation
    from outlive.placement.weighers import PreferSmallerHosts, SlotConsolidation, SoftAffinity
else:
    __getattr__ = load_exports(__name__)
