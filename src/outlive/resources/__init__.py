"""The kinds, one module for each family: their metadata, and how they become JSON."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.resources.amounts import CPU, MEMORY, Amounts
from outlive.resources.cluster import (
    Cluster,
    ClusterSpec,
    ClusterStatus,
    DecisionRecord,
    DegradingPolicy,
    Election,
    ElectionRecord,
    Event,
    FencingPolicy,
    PrimaryRequest,
    Timing,
)
from outlive.resources.commitments import (
    ACTIVE_STATES,
    CommitmentChange,
    CommitmentCoverage,
    CommitmentState,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    CommittedType,
    FlavorCapacity,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    ProjectQuota,
    ProjectQuotaSpec,
    ProjectQuotaStatus,
    SlotChange,
    UsageHistory,
)
from outlive.resources.consoles import Console, Vnc
from outlive.resources.foreign import FOREIGN_KINDS
from outlive.resources.hosts import (
    Aggregate,
    Capabilities,
    Degrading,
    DomainCapabilities,
    DomainState,
    FencingSpec,
    HostLog,
    HostUsage,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    HypervisorUsage,
    Instance,
    Spared,
)
from outlive.resources.memberships import (
    Cut,
    Delivery,
    Fault,
    FencePhase,
    FenceRecord,
    FormerMembership,
    GuardRecord,
    MemberRecord,
    Membership,
    MemberState,
    Notification,
    PowerOn,
    Proof,
    ProofKind,
    SilentPeer,
    Unproven,
)
from outlive.resources.meta import (
    API_VERSION,
    CREATOR_LABEL,
    DOMAIN_LABEL_PREFIX,
    GROUP,
    HOST_LABEL,
    REQUEST_ID_ANNOTATION,
    RESERVATION_TYPE_LABEL,
    SHARES_LABEL,
    VERSION,
    WRITER_LABEL,
    ZONE_LABEL,
    Condition,
    KindInfo,
    ObjectMeta,
    ObjectRef,
    Part,
    R,
    Resource,
    Writers,
    check_name,
    find_condition,
    with_condition,
)
from outlive.resources.networks import (
    Announcement,
    DhcpLease,
    PortMove,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
    VirtualNetworkStatus,
)
from outlive.resources.pipelines import Parameter, Pipeline, PipelineSpec, PipelineStatus, StepSpec
from outlive.resources.placement import (
    Descheduling,
    DeschedulingSpec,
    DeschedulingStatus,
    Knowledge,
    KnowledgeRaw,
    KnowledgeSpec,
    KnowledgeStatus,
    PlacementDecision,
    PlacementHistory,
    PlacementHistorySpec,
    PlacementHistoryStatus,
)
from outlive.resources.policies import AffinityRule, PreferredHosts
from outlive.resources.reservations import (
    COMMITTED,
    FAILOVER,
    IN_FLIGHT,
    TYPE_LABEL_VALUES,
    CommittedSpec,
    CommittedStatus,
    Consumer,
    FailoverSpec,
    FailoverStatus,
    InFlightSpec,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    SpecAllocation,
)
from outlive.resources.secrets import Secret, SecretSpec
from outlive.resources.storage import (
    StorageActivity,
    StorageCheck,
    StorageCluster,
    StorageClusterStatus,
    StorageDaemon,
    StorageDaemonStatus,
    StorageDevice,
    StorageHealth,
    StoragePool,
    StoragePoolStatus,
    StorageVolume,
)
from outlive.resources.tokens import Token
from outlive.resources.coverage import Coverage, CoverageStatus, CoveredBy
from outlive.resources.flavors import Flavor, FlavorGroup, FlavorGroupSpec, FlavorSpec, GroupFlavor
from outlive.resources.vms import (
    Assigned,
    Holder,
    Migration,
    Recovery,
    RecoveryStep,
    Rejection,
    Request,
    StartOrder,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)

if TYPE_CHECKING:
    from outlive.resources.amounts import MOST, MOST_DISK_GIB, disk_problem, size_problems
    from outlive.resources.cluster import CLUSTER, CLUSTER_ID_ANNOTATION, SCHEMA_HOLD_S, SCHEMA_STEPS, AddressHandover
    from outlive.resources.cluster import AddressPhase, ClusterSchema, Disarmed, Pause, RebalancePolicy, SchemaHold
    from outlive.resources.cluster import SchemaStep, SchemaWish, SystemNetwork, SystemNetworkName, cluster_id, is_lost
    from outlive.resources.cluster_roles import COORDINATOR_ACCOUNTS, HOST_ACCOUNTS, SUBJECTS
    from outlive.resources.codec import check_numbers, check_size, convert, convert_document, decode, decode_as
    from outlive.resources.codec import decode_document, encode, encode_canonical, encode_lines, stored_version
    from outlive.resources.codec import to_builtins
    from outlive.resources.columns import DISPLAY_COLUMN, Cell, cell_at, check_fields, name_cells, object_cells
    from outlive.resources.columns import parse_path, value_at
    from outlive.resources.commitments import COMMITMENT_PREFIX, OPEN_LABEL
    from outlive.resources.consoles import CONSOLE_BYTES, CONSOLE_LINES
    from outlive.resources.definitions import PLACE, SIZE_LIMIT, Definition, FunctionPlace, attached_bridges
    from outlive.resources.definitions import cache_refusal, complete_vm, definition_uuid, disk_id, has_uuid
    from outlive.resources.definitions import host_problem, image_key, is_written, make_mac, may_be_same, monitor_name
    from outlive.resources.definitions import monitors_kind, parse, parse_xml, replace_definition, with_bridges
    from outlive.resources.definitions import with_function_places, with_interface_ids
    from outlive.resources.devices import NO_DISK, Device, check_pluggable, device_of, devices_named, devices_of
    from outlive.resources.devices import with_device, without_device
    from outlive.resources.digest import Facts, digest_of, facts_of, facts_type
    from outlive.resources.documents import PROBLEMS_SHOWN, BadInputs, Problem, Problems, json_error, parse_documents
    from outlive.resources.documents import parse_json, parse_request
    from outlive.resources.domain_elements import PAGE, TABLE, Outside, Setting, examine, lies_below
    from outlive.resources.functions import CARDS_LIMIT, FUNCTIONS_LIMIT, MTU_USUAL, FreeFunction, FunctionNeed
    from outlive.resources.functions import LinkState, PhysicalFunction, VirtualFunction, VirtualFunctionSettings
    from outlive.resources.functions import function_name, function_problem
    from outlive.resources.hosts import HEARD, LOG_BYTES, LOG_LINES, OBSERVED, READY, WORKING_CONDITIONS, HostDeath
    from outlive.resources.hosts import HostSchema, HostSelector, InterfaceRates, Maintenance, Management, Quarantine
    from outlive.resources.hosts import ShutdownPolicy, StorageLoss, bad_condition, free_functions, is_only_emptied
    from outlive.resources.hosts import lost_places, observed_condition, explain_out_of_service, unschedulable_reason
    from outlive.resources.list_limits import check_lists, limit_of
    from outlive.resources.memberships import FORMER_MEMBERSHIPS, SILENT_PEERS, TARGETS_LIMIT, RenewalSight
    from outlive.resources.meta import NAME_LENGTH_LIMIT, PROFILE_LABEL, TAG_LABEL_PREFIX, WORD_LENGTH_LIMIT
    from outlive.resources.meta import OwnerReference, Quota, check_annotations, check_key, check_label_value
    from outlive.resources.meta import check_labels, check_object, check_version, creation_order, object_name
    from outlive.resources.networks import IN_OVN, MADE_BY_HOSTS, PORTS_LIMIT, SMALLEST_MTU, DhcpRange, DhcpReservation
    from outlive.resources.networks import FirewallRule, NetworkDhcp, NetworkType, PortMode, Subnet, bridge_name
    from outlive.resources.networks import bridges_in, interface_id, is_interface_id, is_made_by_hosts, port_mode
    from outlive.resources.networks import port_object_name, present_network, present_type, vm_and_index, wanted_mode
    from outlive.resources.placement import DECISIONS_KEPT, history_name
    from outlive.resources.policies import AFFINITY_LIMIT, DEFAULT_LIMITS, NOWHERE, POLICIES, WEIGHT_LIMIT
    from outlive.resources.policies import AffinityPolicy, Failback, Limits, RecoveryLimits, RecoveryPolicy, StorageLost
    from outlive.resources.policies import every_rule, limits_of, with_rule
    from outlive.resources.readers import OF_A_VM, READERS, VERBS, Reads, Verb, find_reads, hosts_of, restore_hidden
    from outlive.resources.readers import shared_part, vm_of_object, without_passwords
    from outlive.resources.reservations import ReservationType
    from outlive.resources.schema import Schema, build_crd, build_crds, column_type, field_docs, kind_schema
    from outlive.resources.schema import openapi_schemas, printer_columns, struct_schema, summarize
    from outlive.resources.state import DUMPED, NOT_DUMPED, State, decode_state, encode_state, read_facts, state_digest
    from outlive.resources.state import state_facts
    from outlive.resources.storage import CHECKS_LIMIT, CODE_CHARACTERS, SUMMARY_CHARACTERS, TEXT_CHARACTERS
    from outlive.resources.storage_places import first_lost, lies_in, place_of
    from outlive.resources.tokens import HOST_TOKENS, JOIN_LASTS, LASTS, LONGEST, OVERLAP, SHARE_LEFT, WARNED_BEFORE
    from outlive.resources.vm_states import HALTED, MIGRATING, RUNNING_WORDS, VmState, active_move, is_down_for_good
    from outlive.resources.vm_states import is_to_run, phase_word, state_of
    from outlive.resources.vms import CONSOLE_SECRETS, HOLDERS_LIMIT, RECOVERY_STEPS, RUN_FINALIZER, START_AFTER_LIMIT
    from outlive.resources.vms import USER_DATA, Answer, HostFailure, MigrationPhase, RecoveryPhase, RequestVerb
    from outlive.resources.writers import ADMIN, CANDIDATE, CONTROLLER, DAEMON, FENCER, HUMANS, PRIMARY, ROLES
    from outlive.resources.writers import changed_fields, created_fields, is_owned, may_write_some, owners_of
    from outlive.resources.writers import table_refusal
    from outlive.resources.yaml_documents import DEPTH, SLICE_EVENTS, YamlLimits, read_yaml
else:
    __getattr__ = load_exports(__name__)

KINDS: dict[str, type[Resource]] = {
    kind.__name__: kind
    for kind in (
        Cluster,
        CommitmentChange,
        CommittedResource,
        Console,
        Coverage,
        DecisionRecord,
        Descheduling,
        DhcpLease,
        Election,
        Event,
        Fault,
        Flavor,
        FlavorGroup,
        FlavorGroupCapacity,
        HostLog,
        Hypervisor,
        HypervisorUsage,
        Knowledge,
        Membership,
        Notification,
        Pipeline,
        PlacementHistory,
        ProjectQuota,
        Reservation,
        Secret,
        StorageCluster,
        StorageDaemon,
        StoragePool,
        Token,
        UsageHistory,
        VirtualMachine,
        VirtualMachinePort,
        VirtualNetwork,
    )
}
"""Every kind that Outlive stores, by name."""

_KIND_OF: dict[tuple[str, str], type[Resource]] = {
    (kind.info.api_version, kind.kind()): kind for kind in (*KINDS.values(), *FOREIGN_KINDS)
}


def find_kind(api_version: str, kind: str) -> type[Resource] | None:
    """The kind of that group, version and name, ours or another's; ``None``: nothing is used of it."""
    return _KIND_OF.get((api_version, kind))


PLURALS: dict[str, type[Resource]] = {kind.info.plural: kind for kind in KINDS.values()}
"""Every kind, by its plural, which is its name in URLs and on the command line."""
