"""What runs on every host: its membership, its virtual machines, and the fencing of peers that fall silent.

Decisions are pure functions over plain structs, one module an idea; ``node/decisions.py`` lists those that have a name
(docs/design/node-decisions.md). Nothing here reads a clock, a store or a driver except through what is handed in.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.credentials import CredentialRenewer, Credentials
    from outlive.node.daemon import Daemon
    from outlive.node.decisions import DECISIONS
    from outlive.node.guard_client import GuardClient, GuardConnection
    from outlive.node.handover import HOLDER_S, LEAVER_S, PHASES, UNTAKEN_S, Duty, HandoverInput, HandoverStep
    from outlive.node.handover import begin_handover, handover_step, note_added, note_removed
    from outlive.node.health import HealthPeer, LeaveVerdict, Leaver, describe_degrading, describe_outcome
    from outlive.node.health import suggest_remedy, explain_stay
    from outlive.node.health_monitor import FRESH_S, PAGE, DaemonGauges, PeerHealth
    from outlive.node.host_log import EVERY_S, FLUSH_S, LINE_CHARACTERS, HostLogWriter, lines_since, trim_lines
    from outlive.node.interventions import DEFAULT, SHUTDOWN_POLICIES, arm_cluster, confirm_lost, describe_release
    from outlive.node.interventions import disarm_cluster, enforcing_hosts, follow_guards, release_fencing, set_mode
    from outlive.node.interventions import set_shutdown_policy, trust_proofs
    from outlive.node.liveness import ClusterLiveness, HostLife, HostLiveness, VmLife, VmLiveness, host_liveness
    from outlive.node.liveness import is_unproven, observed_ready, proof_due, running_entries, shown_clock
    from outlive.node.liveness import sight_of_conditions, sight_without_server, vm_liveness
    from outlive.node.operator import NAMED, NOTHING, AskedVm, call_off_fence, change_object, check_hosts_of_ours
    from outlive.node.operator import check_request, cluster_spec, confirm_off, find_host, hosts_of_domains, is_embedded
    from outlive.node.operator import list_spared, maintenance_status, refuse_arming, request_fence, request_vm
    from outlive.node.operator import set_armed, set_drain, set_maintenance, set_power_maintenance, set_protected
    from outlive.node.permissions import NAMED_AFTER_HOSTS, RULES_OF_HOSTS, RULES_OF_OTHERS, build_forbidden
    from outlive.node.permissions import host_refusal, kind_refusal, needed_facts, write_refusal
    from outlive.node.permissions_of_protocol import NO_FACTS, Facts, HostWriter, NeededFacts
    from outlive.node.permissions_of_protocol import check_hypervisor_by_controller, dropped_holders, is_related
    from outlive.node.primary import GUARD_S, LOOKS_OF_KERNEL, MARGIN_S, Primary
    from outlive.node.primary_elector import ROLE, Next, PrimaryElector, answer_request, may_take
    from outlive.node.primary_requests import describe_handover, primary_is_settled, request_primary, role_of
    from outlive.node.role_addresses import Place, RoleAddresses
    from outlive.node.status import STALE_CYCLES, HostReporter, apply_overcommit
    from outlive.node.stop import HURRY_S
    from outlive.node.storage_loss import WHAT_NOW, StuckRequests
    from outlive.node.storage_statistics import DEVICES_RETRY_S, GAUGES_S, OUT_LIMIT, UNANSWERED_LIMIT, WRITES_PER_S
    from outlive.node.storage_statistics import StorageGauges, StorageStatistics, publish_devices
    from outlive.node.storage_watch import ANSWER_S, PUBLISHED_LIMIT, STUCK_S, WATCH_S, StorageLosses, next_places
    from outlive.node.storage_watch import published_places
else:
    __getattr__ = load_exports(__name__)
