"""Settings of what is sold, section ``commitments`` (docs/reference/commitments.md#settings).

Every interval has a default that is more than nothing, so that no controller runs hot or sleeps for ever because a key
was left out.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from outlive.commitments.access import LiquidPolicy
from outlive.resources import CommittedType
from outlive.runtime.units import Duration

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
    """Whether a dry run asks placement about it; else a dry run takes it as possible."""
    has_capacity: bool = False
    """The capacity report has it."""
    has_quota: bool = False
    """Limes sets a quota for it."""


class RamSettings(ResourceSettings, frozen=True, kw_only=True):
    """The same for memory, which is counted in a unit."""

    ram_unit_gib: Annotated[int, msgspec.Meta(ge=0, le=RAM_UNIT_LIMIT_GIB)] = msgspec.field(
        default=0, name="ramUnitGiB"
    )
    """GiB that one unit of memory has; 0: the smallest flavor of a group with a fixed ratio, 1 GiB of any other."""


class GroupSettings(_Section, frozen=True, kw_only=True):
    """The three resources of a flavor group."""

    ram: RamSettings = RamSettings()
    cores: ResourceSettings = ResourceSettings()
    instances: ResourceSettings = ResourceSettings()

    def __post_init__(self) -> None:
        if self.instances.handles_commitments or self.instances.handles_dry_run:
            raise ValueError("nobody commits to instances; handlesCommitments and handlesDryRun are for ram and cores")

    def committed(self, kind: CommittedType) -> ResourceSettings:
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
    """Flavor group → what its resources take part in; ``*``: groups without an entry. Capacity is reported from the
    first start, and nothing is sold before somebody writes ``handlesCommitments``."""
    flavor_group_pipelines: dict[str, str] = {}
    """Flavor group → the pipeline that chooses hosts for its slots; ``*``: groups without an entry."""
    pipeline_default: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """The pipeline of all others."""
    watch_timeout: Duration = Duration(15.0)
    """How long one batch may take to be decided; then it is refused, and nothing of it is done."""
    max_slots_per_commitment: Positive = 10_000
    """New slots for one commitment at most."""
    enable_payg_pre_allocation: bool = True
    """Cover the project's own VMs first, where they run, before a host is chosen for a new slot."""
    requeue_interval_active: Duration = Duration(300.0)
    """How often a slot that is there is checked."""
    requeue_interval_retry: Duration = Duration(60.0)
    """How soon something that found no capacity is tried again, at first."""
    max_requeue_interval: Duration = Duration(1800.0)
    """The longest time between two tries."""
    requeue_interval_grace_period: Duration = Duration(60.0)
    """How often a slot is checked whose VM is expected."""
    allocation_grace_period: Duration = Duration(900.0)
    """How long a slot waits for a VM that is meant for it."""
    enable_oversubscription_check: bool = True
    """Watch for hosts on which more is held than there is."""
    enable_oversubscription_eviction: bool = True
    """Move commitment slots away from such a host; VMs are never touched."""
    oversubscription_grace_period: Duration = Duration(120.0)
    """How long a host may hold too much before a slot leaves it, and the time between two such slots."""
    oversubscription_min_check_interval: Duration = Duration(30.0)
    """The shortest time between two checks of one host."""
    usage_cooldown_interval: Duration = Duration(300.0)
    """The shortest time between two assignments of a project's VMs to its commitments."""
    usage_history_months: Annotated[int, msgspec.Meta(ge=1, le=120)] = 13
    """How many months it is kept which VMs were charged to which commitments, the present one included."""
    quota_served_availability_zones: tuple[str, ...] = ()
    """Zones whose quota is kept; empty: all."""
    quota_full_reconcile_interval: Duration = Duration(300.0)
    """How often the usage of all projects is counted anew."""
    quota_state_filter: tuple[Literal["planned", "pending", "guaranteed", "confirmed"], ...] = (
        "confirmed",
        "guaranteed",
    )
    """States of commitments whose usage is not paid as it goes."""
    enable_hypervisor_diff: bool = True
    """Correct the usage between two full counts by what hosts report as started and gone."""
    capacity_reconcile_interval: Duration = Duration(300.0)
    """How often the capacity of all groups is computed anew, at least."""
    capacity_min_reconcile_interval: Duration = Duration(30.0)
    """The shortest time between two such computations."""
    capacity_total_pipeline: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """The pipeline that says which hosts belong to a group, as if nothing ran."""
    capacity_placeable_pipeline: Annotated[str, msgspec.Meta(min_length=1)] = GENERAL_PIPELINE
    """The pipeline that says which hosts take another VM of a group."""
    consistency_interval: Duration = Duration(300.0)
    """How often Limes, commitments, slots, hosts and the list of VMs are compared."""
    enable_consistency_repair: bool = False
    """Repair what lasts and can be repaired safely, without being asked."""
    sync_interval: Duration = Duration(3600.0)
    """How often the commitments that Limes lists are compared with ours."""

    def __post_init__(self) -> None:
        for name in _INTERVALS:
            if getattr(self, name) <= 0:
                raise ValueError(f"{_written(name)} is 0; write a duration that is more than nothing")
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

    def group(self, name: str) -> GroupSettings:
        """What a flavor group's resources take part in: its own entry, that of ``*``, or nothing."""
        found = self.flavor_group_resources.get(name) or self.flavor_group_resources.get(EVERY_GROUP)
        return found or UNCONFIGURED

    def pipeline(self, group: str) -> str:
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


def _written(name: str) -> str:
    """A field as the file has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
