"""The nouns: one module per family of kinds, their metadata, and how they become JSON."""

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
    condition,
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
from outlive.resources.pipelines import Parameter, Pipeline, PipelineSpec, PipelineStatus, Step
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
from outlive.resources.vms import (
    Assigned,
    Coverage,
    CoverageStatus,
    CoveredBy,
    Flavor,
    FlavorGroup,
    FlavorGroupSpec,
    FlavorSpec,
    GroupFlavor,
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
