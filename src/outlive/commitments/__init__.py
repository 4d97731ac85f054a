"""Capacity that is sold: commitments of customers, the slots that fulfil them, and what Limes asks of both.

What decides is pure: ``names`` and ``units`` (how resources are called and counted), ``state`` (a commitment as numbers
and times), ``slots`` (which slots it needs), ``batch`` (what a batch of changes asks for) and ``handover`` (which slots
pass from one commitment of a batch to another). The rules are in
docs/reference/commitments.md.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.commitments.acceptance import HeadroomOutcome, SlotsOutcome, check_headroom, evaluate
    from outlive.commitments.answers import Answered, Answers, digest_of
    from outlive.commitments.assembly import Commitments
    from outlive.commitments.batch import Batch, BatchPlan, CommitmentRequest, ProjectRequest, ResourceRequest
    from outlive.commitments.batch import dry_run_failed_text, dry_run_needs, dry_run_timeout_text, failed_text
    from outlive.commitments.batch import needs_confirmation, steps_of, timeout_text, version_text
    from outlive.commitments.bookkeeping import BookkeepingInput, BookkeepingResult, PlacedVm, SlotOutcome, add_vm
    from outlive.commitments.bookkeeping import pick_slot, record, unused_memory
    from outlive.commitments.calendar import ArrivingCapacity, Booking, CalendarInput, RetryInput, find_earliest
    from outlive.commitments.calendar import count_free_at, list_bookings, retry_at
    from outlive.commitments.capacity import CapacityTable, EngineProbe
    from outlive.commitments.capacity_status import committed_slots
    from outlive.commitments.catalogue import Catalogue
    from outlive.commitments.consistency import OWNERS, CommitmentDisagreement, ConsistencyInput, DisagreementKind
    from outlive.commitments.consistency import Repair, VmFacts, compare
    from outlive.commitments.decision import BatchRefusal, slot_kept
    from outlive.commitments.decisions import DECISIONS
    from outlive.commitments.documents import join_documents
    from outlive.commitments.explanation import ClosedRoom, CommitmentExplanation, Ending, ExplanationInput, HostRoom
    from outlive.commitments.explanation import MissingCores, MissingSlots, StepCount, explain
    from outlive.commitments.handover import Handover, hand_over
    from outlive.commitments.history import Charged, CoverageShare, begin_month, is_old, list_shares, month_before
    from outlive.commitments.history import month_begin, month_of, month_seconds, record_charges, list_still_charged
    from outlive.commitments.liquid import LARGEST, ZONES_LIMIT, ChangeAnswer, ChangeRequest, DomainMetadata
    from outlive.commitments.liquid import LiquidCommitment, ProjectChange, ProjectMetadata, QuotaRequest, ReportRequest
    from outlive.commitments.liquid import ResourceChange, ResourceQuota, ServiceInfo, ZoneQuota, decode, encode
    from outlive.commitments.liquid_metrics import Call, LiquidMetrics, Result
    from outlive.commitments.names import capacity_name, change_name, change_number, check_uuid, commitment_name
    from outlive.commitments.names import free_slot_names, history_name, parse_resource, quota_name
    from outlive.commitments.names import real_zone, resource_name, slot_index_next, slot_name, uuid_of
    from outlive.commitments.open_changes import OPEN
    from outlive.commitments.oversubscription import AVOIDED_S, CheckOutcome, HostCheck, HostVerdict, HostWatch
    from outlive.commitments.oversubscription import LeftHosts, check_host, evict_slot, slot_to_evict
    from outlive.commitments.overview import GroupOverview, Overview, ProjectUsage, project_usage
    from outlive.commitments.placer import give_way
    from outlive.commitments.ports import CommitmentSource, DomainSource, KeystoneDomain, Offload, Project
    from outlive.commitments.ports import ProjectSource, TokenOwner, TokenValidator, run_inline
    from outlive.commitments.probe import PATHS, PROBE_PROJECT, LiquidProbe, ProbeFailed, ProbeSettings, change_request
    from outlive.commitments.quota import Account, Sizes, Usage, UsageCounter, committed_usage, quota_status
    from outlive.commitments.quota import says_the_same, uncovered_usage, usage_summary, with_zeros
    from outlive.commitments.quota_intake import QuotaIntake, QuotaPush, pushed_quota
    from outlive.commitments.records import BY_PROJECT, InformedRecords, project_of
    from outlive.commitments.reports import Offer, capacity_report, offers_of, service_info, usage_report
    from outlive.commitments.running_vms import RunningVms
    from outlive.commitments.service import BoundedLock, CommitmentService, Interface, Late, batch_of
    from outlive.commitments.settings import ADMIN_ROLE, VIEWER_ROLE, LiquidAction, LiquidPolicy, caller_text
    from outlive.commitments.settings import EVERY_GROUP, GENERAL_PIPELINE, CommitmentSettings, GroupSettings
    from outlive.commitments.settings import RamSettings, ResourceSettings
    from outlive.commitments.slots import Candidate, DeletionReason, NewSlot, SlotLimitExceeded, SlotOptions, SlotPlan
    from outlive.commitments.slots import confirmed_allocations, payg_candidates, plan_slots, reservation_of
    from outlive.commitments.slots import slot_allocations
    from outlive.commitments.split import SplitGroup, SplitHost, SplitInput, slots_on
    from outlive.commitments.state import ACCEPTED_TEXT, READY, STATES, WAITING_FOR_SLOTS, Commitment, ListedCommitment
    from outlive.commitments.state import ReadyReason, from_change, from_listed, from_spec, has_slots, is_active
    from outlive.commitments.state import is_judged, is_over, normalise_time, reason_over, retry_delay, set_ready
    from outlive.commitments.state import spec_of, summarise
    from outlive.commitments.survival import Unfilled, find_unfilled_after_loss
    from outlive.commitments.sync import SkipReason, SyncPlan, judge, plan, skip_counts
    from outlive.commitments.syncer import CommitmentSyncer, StoreState, read_store
    from outlive.commitments.trial import READ, Trial, open_trial
    from outlive.commitments.units import MIB_PER_GIB, UNIT_LIMIT, UNLIMITED, GroupUnit, LiquidUnit
    from outlive.commitments.units import format_unit, group_unit, parse_unit, unit_of
    from outlive.commitments.usage import Charge, UsageInput, UsageResult, UsageStep, UsageVm, assign, map_to_commitment
    from outlive.commitments.usage import list_accepted, set_usage, usage_due, usage_vms, without_usage
    from outlive.commitments.verification import DropReason, VerificationInput, VerificationResult, verify_slot
    from outlive.commitments.verification import without_vms
    from outlive.commitments.view import CommitmentInformers, CommitmentView, commitment_indexes, slot_indexes
    from outlive.commitments.vm_table import VmTable
    from outlive.commitments.whatif import CommitmentOutcome, WhatIfResult, ask
else:
    __getattr__ = load_exports(__name__)
