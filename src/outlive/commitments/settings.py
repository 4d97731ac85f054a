"""Settings of what is sold, section ``commitments`` (docs/reference/commitments.md#settings).

Every interval has a default that is more than nothing, so that no controller runs hot or sleeps for ever because a key
was left out.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from outlive.resources import CommittedType
from outlive.runtime import Duration

if TYPE_CHECKING:  # ports know of what is counted by the settings
    from outlive.commitments.ports import TokenOwner

ADMIN_ROLE: Final = "cloud_resource_admin"
VIEWER_ROLE: Final = "cloud_resource_viewer"
"""Roles of Limes' own policy."""


class LiquidAction(enum.StrEnum):
    """What a request needs."""

    READ = "read reports"
    QUOTA = "set quota"
    CHANGE = "change commitments"


class LiquidPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which owners of Keystone tokens may do what. One of the roles suffices; names of roles ignore case."""

    read_roles: tuple[str, ...] = (ADMIN_ROLE, VIEWER_ROLE)
    """Roles that may read the catalogue and the reports."""
    quota_roles: tuple[str, ...] = (ADMIN_ROLE,)
    """Roles that may set quota."""
    change_roles: tuple[str, ...] = (ADMIN_ROLE,)
    """Roles that may change commitments, also in a dry run."""
    projects: tuple[str, ...] = ()
    """Projects to which a token must be scoped: ids, or ``NAME@DOMAIN``. If ``domains`` is empty too, any scope reads,
    and only that of the whole cloud writes."""
    domains: tuple[str, ...] = ()
    """Ids or names of the domains of these projects; empty: any."""

    def explain_refusal(self, caller: TokenOwner, action: LiquidAction) -> str:
        """Why the caller may not do this, in one line; empty if he may."""
        wanted = {
            LiquidAction.READ: self.read_roles,
            LiquidAction.QUOTA: self.quota_roles,
            LiquidAction.CHANGE: self.change_roles,
        }[action]
        if not {role.lower() for role in caller.roles} & {role.lower() for role in wanted}:
            needs = f"one of the roles {', '.join(wanted)} is needed" if wanted else "no role may"
            return f"{caller_text(caller)} may not {action}: {needs}"
        qualified = f"{caller.project_name}@{caller.domain_name}", f"{caller.project_name}@{caller.domain_id}"
        scopes = {caller.project_id, *qualified, *((caller.project_name,) if self.domains else ())}
        if not (self.projects or self.domains or caller.system) and action is not LiquidAction.READ:
            return (
                f"{caller_text(caller)} may not {action}: commitments.liquidPolicy names no projects whose tokens may"
            )
        scope = "the whole cloud" if caller.system else caller.project_name or caller.project_id or "no project"
        if self.projects and not scopes & set(self.projects):
            return f"{caller_text(caller)} may not {action}: the token is scoped to {scope}"
        if self.domains and not {caller.domain_id, caller.domain_name} & set(self.domains):
            domain = caller.domain_name or caller.domain_id or "no domain"
            return f"{caller_text(caller)} may not {action}: the token is scoped to {scope} of {domain}"
        return ""


def caller_text(caller: TokenOwner) -> str:
    """For logs and records: ``user@domain``, the user's id where the name is missing."""
    user = caller.user_name or caller.user_id
    return f"{user}@{caller.user_domain}" if caller.user_domain else user


NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

EVERY_GROUP: Final = "*"
"""The key for flavor groups without an entry of their own."""
GENERAL_PIPELINE: Final = "kvm-general-purpose-load-balancing"
RAM_UNIT_LIMIT_GIB: Final = 2**20
"""The largest unit of memory, a pebibyte."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Keys are camelCase in the file."""


class ResourceSettings(_Section, frozen=True, kw_only=True):
    """What one resource of a flavor group takes part in; nothing, unless it says so."""

    handles_commitments: bool = False
    """Customers may commit to it."""
    handles_dry_run: bool = False
    """A dry run asks placement about it; else it counts as possible."""
    has_capacity: bool = False
    """The capacity report has it."""
    has_quota: bool = False
    """Limes sets a quota for it."""


class RamSettings(ResourceSettings, frozen=True, kw_only=True):
    """The same for memory, which is counted in a unit."""

    ram_unit_gib: Annotated[int, msgspec.Meta(ge=0, le=RAM_UNIT_LIMIT_GIB)] = msgspec.field(
        default=0, name="ramUnitGiB"
    )
    """GiB of one unit of memory; 0: the smallest flavor of a group with a fixed ratio, else 1 GiB."""


class GroupSettings(_Section, frozen=True, kw_only=True):
    """The three resources of a flavor group."""

    ram: RamSettings = RamSettings()
    cores: ResourceSettings = ResourceSettings()
    instances: ResourceSettings = ResourceSettings()

    def __post_init__(self) -> None:
        if self.instances.handles_commitments or self.instances.handles_dry_run:
            raise ValueError("nobody commits to instances; handlesCommitments and handlesDryRun are for ram and cores")

    def committed_resource(self, kind: CommittedType) -> ResourceSettings:
        """The resource that commitments of this type are of."""
        return self.ram if kind == "memory" else self.cores


UNCONFIGURED: Final = GroupSettings()
_REPORTED: Final = GroupSettings(
    ram=RamSettings(handles_dry_run=True, has_capacity=True),
    cores=ResourceSettings(handles_dry_run=True, has_capacity=True),
    instances=ResourceSettings(has_capacity=True),
)


class CommitmentSettings(_Section, frozen=True, kw_only=True):
    """How capacity is sold."""

    enable_change_commitments: bool = True
    """Serve ``change-commitments``."""
    enable_report_usage: bool = True
    """Serve ``report-usage``."""
    enable_report_capacity: bool = True
    """Serve ``report-capacity``."""
    enable_quota: bool = True
    """Serve ``quota``."""
    liquid_policy: LiquidPolicy = LiquidPolicy()
    """What the owners of Keystone tokens may do through LIQUID."""
    flavor_group_resources: dict[str, GroupSettings] = msgspec.field(default_factory=lambda: {EVERY_GROUP: _REPORTED})
    """Flavor group → what its resources take part in; ``*``: other groups. By default nothing is sold."""
    flavor_group_pipelines: dict[str, str] = {}
    """Flavor group → pipeline for its slots; ``*``: groups without an entry."""
    pipeline_default: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """Pipeline of other groups."""
    watch_timeout: Duration = Duration(15.0)
    """How long the decision of a batch may take before it is refused."""
    max_slots_per_commitment: Positive = 10_000
    """Most new slots for one commitment."""
    enable_payg_pre_allocation: bool = True
    """Cover the project's running VMs before new slots are placed."""
    requeue_interval_active: Duration = Duration(300.0)
    """How often a placed slot is checked."""
    requeue_interval_retry: Duration = Duration(60.0)
    """First pause before another try without capacity."""
    max_requeue_interval: Duration = Duration(1800.0)
    """The longest time between two tries."""
    requeue_interval_grace_period: Duration = Duration(60.0)
    """How often a slot that expects a VM is checked."""
    allocation_grace_period: Duration = Duration(900.0)
    """How long a slot waits for an expected VM."""
    enable_oversubscription_check: bool = True
    """Detect hosts on which more is reserved than they have."""
    enable_oversubscription_eviction: bool = True
    """Move commitment slots away from such a host; VMs are never touched."""
    oversubscription_grace_period: Duration = Duration(120.0)
    """How long a host may have too many reservations before a slot leaves it, and then the next."""
    oversubscription_min_check_interval: Duration = Duration(30.0)
    """The shortest time between two checks of one host."""
    usage_cooldown_interval: Duration = Duration(300.0)
    """The shortest time between two assignments of a project's VMs to its commitments."""
    usage_history_months: Annotated[int, msgspec.Meta(ge=1, le=120)] = 13
    """Months of usage history, the present one included."""
    quota_served_availability_zones: tuple[str, ...] = ()
    """Zones whose quota is kept; empty: all."""
    quota_full_reconcile_interval: Duration = Duration(300.0)
    """How often the usage of all projects is counted."""
    quota_state_filter: tuple[Literal["planned", "pending", "guaranteed", "confirmed"], ...] = (
        "confirmed",
        "guaranteed",
    )
    """States of commitments that cover usage."""
    enable_hypervisor_diff: bool = True
    """Update usage between two full counts by VMs that start and go."""
    capacity_reconcile_interval: Duration = Duration(300.0)
    """Longest time between two computations of all capacity."""
    capacity_min_reconcile_interval: Duration = Duration(30.0)
    """Shortest time between two computations."""
    capacity_total_pipeline: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """Pipeline for the hosts of a group on an empty cluster."""
    capacity_placeable_pipeline: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """Pipeline for the hosts that take another VM of a group."""
    consistency_interval: Duration = Duration(300.0)
    """How often Limes, commitments, slots, hosts and VMs are compared."""
    enable_consistency_repair: bool = False
    """Do safe repairs of lasting differences automatically."""
    sync_interval: Duration = Duration(3600.0)
    """How often commitments are compared with Limes."""

    def __post_init__(self) -> None:
        for name in _INTERVALS:
            if getattr(self, name) <= 0:
                first, *rest = name.split("_")
                key = first + "".join(word.capitalize() for word in rest)
                raise ValueError(f"{key} is 0; write a duration that is more than nothing")
        if self.max_requeue_interval < self.requeue_interval_retry:
            raise ValueError(
                f"maxRequeueInterval {self.max_requeue_interval} is less than "
                f"requeueIntervalRetry {self.requeue_interval_retry}"
            )
        if self.capacity_reconcile_interval <= self.capacity_min_reconcile_interval:
            raise ValueError(
                f"capacityReconcileInterval {self.capacity_reconcile_interval} is not more than "
                f"capacityMinReconcileInterval {self.capacity_min_reconcile_interval}"
            )
        if not all(self.flavor_group_pipelines.values()):
            raise ValueError("flavorGroupPipelines has a group without a pipeline; name one or leave the group out")

    def group_settings(self, name: str) -> GroupSettings:
        """What a flavor group's resources take part in: its own entry, that of ``*``, or nothing."""
        found = self.flavor_group_resources.get(name) or self.flavor_group_resources.get(EVERY_GROUP)
        return found or UNCONFIGURED

    def pipeline_for(self, group: str) -> str:
        """The pipeline that chooses hosts for slots of a flavor group."""
        pipelines = self.flavor_group_pipelines
        return pipelines.get(group) or pipelines.get(EVERY_GROUP) or self.pipeline_default


_INTERVALS: Final = (
    "watch_timeout",
    "requeue_interval_active",
    "requeue_interval_retry",
    "max_requeue_interval",
    "requeue_interval_grace_period",
    "oversubscription_grace_period",
    "oversubscription_min_check_interval",
    "usage_cooldown_interval",
    "quota_full_reconcile_interval",
    "capacity_reconcile_interval",
    "capacity_min_reconcile_interval",
    "consistency_interval",
    "sync_interval",
)
