"""How controllers run: virtual time, tasks, informers, queues, the manager, elections, events, metrics, settings."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.runtime.audit import DAY_S, ENTRY_BYTES, FIELDS, SUMMARY, SURGE, WINDOW_S, AuditChain, AuditEntry
    from outlive.runtime.audit import AuditFilter, AuditLog, AuditSettings, Refusals, TokenShares, audit_faults
    from outlive.runtime.audit import parse_line, select, shorten, shorten_fields, verify
    from outlive.runtime.backups import FIRST_S, NAME, BackupCopy, BackupKeeper, BackupSettings, compute_due_time
    from outlive.runtime.backups import find_surplus
    from outlive.runtime.cluster_verbs import F, ClusterEvents, ClusterVerbs, PatchOperation, ServedResource
    from outlive.runtime.config import FILE_BYTES, load_settings, parse_settings, read_settings_file, reference_page
    from outlive.runtime.controller import ControllerOptions, ControllerRun, QueueClosed, Requeue, Watch, WorkQueue
    from outlive.runtime.crashes import CALM_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, PARTS_LIMIT, Crashes, keep_running
    from outlive.runtime.decisions import Decision, DecisionLog, DecisionTable, Use, compute_digest, is_error
    from outlive.runtime.decisions import says_nothing, without_nulls
    from outlive.runtime.election import BELIEF, RENEW_S, ROUNDS_LEAST, SILENCE_S, Elector
    from outlive.runtime.events import QUEUE_LIMIT, EventRecorder, event_name, event_sweeper
    from outlive.runtime.faults import ENDED_KEPT_S, HOST_KINDS, LIST_AGAIN_S, LOOK_S, REFRESH_S, REPORTER_LABEL
    from outlive.runtime.faults import ActiveFault, FaultRecorder, FaultSet, acknowledge, build_unrecorded
    from outlive.runtime.faults import compute_health, crash_faults, fault_name, fault_sweeper, is_silenced
    from outlive.runtime.informer import Informer
    from outlive.runtime.manager import Manager
    from outlive.runtime.metrics import Counter, Gauge, Histogram, Metrics
    from outlive.runtime.notifications import CommandSettings, HeartbeatSettings, MailSettings, NotificationMessage
    from outlive.runtime.notifications import NotifySettings, TargetSettings, WebhookSettings, record_delivery
    from outlive.runtime.notifications import due_notices, test_message
    from outlive.runtime.notifier import GATHER_S, NotificationTarget, Notifier, NotifierPorts
    from outlive.runtime.periodic import Periodic, log_errors
    from outlive.runtime.retention import FLUSH_S, SWEEP_STEP, BackgroundWriter, Sweeper, Waiting
    from outlive.runtime.schema_decisions import DECISIONS
    from outlive.runtime.schema_steps import SchemaObservation, next_schema_step
    from outlive.runtime.schema_upgrade import AGAIN_S, SchemaUpgrade
    from outlive.runtime.selector import LATER_EVENTS, FairLoop, FairSelector, current_selector
    from outlive.runtime.steps import Outcome, Precondition, ProtocolStep, Refusal, refuses
    from outlive.runtime.tasks import OrderedTaskGroup
    from outlive.runtime.trail import RECORD_BYTES, Trail, trail_sweeper
    from outlive.runtime.units import Amount, Count, Duration, Number, Positive, Size, decode_unit, encode_unit
    from outlive.runtime.validation import DEPTH_LIMIT, MISTAKES_LIMIT, environment_name, find_mistakes, path_text
    from outlive.runtime.validation import struct_in
    from outlive.runtime.virtual import PART, STILL_LIMIT, DeadlockError, LoopPart, NoOutside, VirtualLimit
    from outlive.runtime.virtual import describe_pending, outside_parts, run_virtual
else:
    __getattr__ = load_exports(__name__)
