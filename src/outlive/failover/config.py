"""The settings of failover: two sections, ``failover`` and ``failoverUpkeep``.

``FailoverConfig`` is the section that operators of the reference already know: the same keys, the same rules for
filling what is absent (docs/reference/failover-operation.md#configuration-keys). What only Outlive has is apart in
``FailoverUpkeepSettings``, so that a configuration of the reference loads here as it is, and an unknown key in it is
an error there and here. Durations stay text until they are read through the ``…_s`` properties, which are seconds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import msgspec

from outlive.base import BadInput, parse_duration
from outlive.failover.protection import ProtectionSettings
from outlive.failover.topology import HOST_UNIT, TopologyChoice
from outlive.placement import PlacementSettings

DEFAULT_REQUIREMENTS = {"*": 2}
DEFAULT_RECONCILE_INTERVAL = "30s"
DEFAULT_REVALIDATION_INTERVAL = "30m"
DEFAULT_DATASOURCE = "nova-servers"
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,53}[A-Za-z0-9])?")
"""What may follow ``outlive.dev/domain-`` in the name of a label, which has at most 63 characters there."""


Profile = Literal["general", "dedicated"]
"""Which pipelines failover's calls name (docs/reference/failover-operation.md#placement-calls)."""


class RepackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moving members into fewer slots in the background."""

    max_changes_per_cycle: int = 40
    """Most changes of allocations a cycle, while no VM lacks a slot; 0: no repacking."""


MOST_SLOTS = 1_000
"""The most slots that a pattern may ask for a VM; questions and levels stop at 16."""


class FailoverConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``failover``. A key that is absent has the value that its meaning names."""

    flavor_failover_requirements: dict[str, int] | None = None
    """Pattern of flavor names → slots of such a VM. Absent: 2 for all; ``{}``: none."""
    reconcile_interval: str = ""
    """Pause between cycles. Absent: 30s."""
    short_reconcile_interval: str | None = None
    """Pause between cycles that are catching up; "0s": no cycle catches up. Absent: 100ms."""
    min_success_for_short_interval: int | None = None
    """Least slots created or reused for the short pause to follow; 0: no minimum. Absent: 1."""
    max_failures_for_short_interval: int | None = None
    """Most failures for the short pause to follow; 0: none. Absent: 99."""
    max_vms_to_process: int = msgspec.field(default=0, name="maxVMsToProcess")
    """VMs handled in a cycle; a negative number: all. Absent or 0: 30."""
    vm_selection_rotation_interval: int | None = None
    """Every n-th cycle begins its selection at a random place; 0: never. Absent: 4."""
    limit_one_new_reservation_per_hypervisor: bool | None = None
    """At most one new slot a host and cycle, except in first plans and between cycles. Absent: true."""
    trust_hypervisor_location: bool = False
    """Host of a VM: the one that reports it (true), or that in the VM source."""
    use_flavor_group_resources: bool = False
    """Slots are as large as the largest flavor of the VM's group; not with profile ``dedicated``."""
    revalidation_interval: str = ""
    """Pause between two validations of a slot, give or take 10 %. Absent: 30m."""
    creator: str = ""
    """Value of the label ``outlive.dev/creator`` on slots. Absent: ``cortex-failover-controller``, as in existing
    dashboards."""
    datasource_name: str = ""
    """Name of the data source if VMs come from a database. Absent: ``nova-servers``."""
    scheduler_url: str = msgspec.field(default="", name="schedulerURL")
    """Address of placement over HTTP. Absent: ``http://localhost:8080/scheduler/nova/external``."""
    repack: RepackSettings = RepackSettings()

    def __post_init__(self) -> None:
        for name in ("reconcile_interval", "short_reconcile_interval", "revalidation_interval"):
            _check_duration(_file_key(self, name), getattr(self, name))
        for pattern, count in (self.flavor_failover_requirements or {}).items():
            if count > MOST_SLOTS:
                raise ValueError(f"flavorFailoverRequirements: {pattern!r} needs {count} slots; at most {MOST_SLOTS}")
        if self.repack.max_changes_per_cycle < 0:
            raise ValueError(f"repack.max_changes_per_cycle is {self.repack.max_changes_per_cycle}; at least 0")

    def apply_defaults(self) -> FailoverConfig:
        """The same with absent values filled.

        Empty text, a zero duration, null and 0 for ``maxVMsToProcess`` count as absent; the nullable numbers keep an
        explicit 0. A short pause of zero stays, and an absent one-per-host limit means true.
        """
        requirements = self.flavor_failover_requirements
        one_each = self.limit_one_new_reservation_per_hypervisor
        return msgspec.structs.replace(
            self,
            flavor_failover_requirements=dict(DEFAULT_REQUIREMENTS) if requirements is None else requirements,
            reconcile_interval=_read_duration(self.reconcile_interval, DEFAULT_RECONCILE_INTERVAL),
            short_reconcile_interval=self._short_interval(),
            min_success_for_short_interval=_read_number(self.min_success_for_short_interval, 1),
            max_failures_for_short_interval=_read_number(self.max_failures_for_short_interval, 99),
            max_vms_to_process=self.max_vms_to_process or 30,
            vm_selection_rotation_interval=_read_number(self.vm_selection_rotation_interval, 4),
            limit_one_new_reservation_per_hypervisor=True if one_each is None else one_each,
            revalidation_interval=_read_duration(self.revalidation_interval, DEFAULT_REVALIDATION_INTERVAL),
            creator=self.creator or "cortex-failover-controller",
            datasource_name=self.datasource_name or DEFAULT_DATASOURCE,
            scheduler_url=self.scheduler_url or "http://localhost:8080/scheduler/nova/external",
        )

    def adapt_to_profile(self, profile: Profile) -> FailoverConfig:
        """The same as it works with these calls: those of ``dedicated`` know the VMs' own sizes only, so that slots
        are of those as well, whatever ``useFlavorGroupResources`` says."""
        if profile == "dedicated" and self.use_flavor_group_resources:
            return msgspec.structs.replace(self, use_flavor_group_resources=False)
        return self

    def _short_interval(self) -> str:
        return self.short_reconcile_interval or "100ms"

    @property
    def requirements(self) -> dict[str, int]:
        """Pattern → count, filled."""
        patterns = self.flavor_failover_requirements
        return dict(DEFAULT_REQUIREMENTS) if patterns is None else patterns

    @property
    def reconcile_interval_s(self) -> float:
        """Normal pause in seconds."""
        return parse_duration(_read_duration(self.reconcile_interval, DEFAULT_RECONCILE_INTERVAL))

    @property
    def short_reconcile_interval_s(self) -> float:
        """Short pause in seconds; 0 means that there is none."""
        return parse_duration(self._short_interval())

    @property
    def revalidation_interval_s(self) -> float:
        """Pause between validations of a slot, in seconds."""
        return parse_duration(_read_duration(self.revalidation_interval, DEFAULT_REVALIDATION_INTERVAL))


class FailoverUpkeepSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``failoverUpkeep``: what only Outlive's failover has."""

    vm_source: Literal["resources", "database", "nova"] = "resources"
    """Source of VMs: objects, Cortex' synchronised tables, or Nova's API (section ``openstack``)."""
    database_url: str = ""
    """SQLAlchemy address of that database, such as ``postgresql+psycopg://user@host/db``."""
    data_sources: dict[str, str] = {}
    """Name → address, for ``failover.datasourceName``; its default means ``databaseUrl``."""
    database_timeout: str = "30s"
    """Longest time one read of the database may take."""
    profile: Profile = "general"
    """``general``: the pipelines that VMs use, with options; ``dedicated``: three pipelines of failover's own."""
    placement: Literal["inprocess", "http"] = "inprocess"
    """Ask the placement service of this process, or ``failover.schedulerURL``."""
    scheduler_token: str = ""
    """Bearer token for ``failover.schedulerURL``; better in a file."""
    scheduler_token_file: str = ""
    """File with that token; read at start."""
    brake_share: float = 0.20
    """A cycle that would remove more than this share of all allocations …"""
    brake_number: int = 50
    """… and more than this number of them removes none."""
    grace_pauses: float = 2.0
    """Number of normal pauses after which a slot without a status is deleted."""
    inline_planning_vms: int = 200
    """Cycles that place more VMs than this are computed in a child process."""
    events_react: bool = True
    """React to VM and host changes at once, not only in cycles."""
    validation_workers: int = 4
    """Slots validated at the same time."""
    failure_unit: str = HOST_UNIT
    """What fails together: ``host``, or a failure domain such as ``rack``."""
    keep_apart: list[str] = msgspec.field(default_factory=list)
    """Failure domains that a VM's host and its slots must not share, such as ``["rack", "power"]``."""
    server_groups: bool = True
    """Whether policies of server groups apply to slots."""

    def __post_init__(self) -> None:
        _check_duration(_file_key(self, "database_timeout"), self.database_timeout)
        for name, domains in (("failureUnit", [self.failure_unit]), ("keepApart", self.keep_apart)):
            for domain in domains:
                if not _DOMAIN.fullmatch(domain):
                    raise ValueError(
                        f"{name} names {domain!r}; write a domain as in the label outlive.dev/domain-<name>"
                    )
        if HOST_UNIT in self.keep_apart:
            raise ValueError("keepApart names host; slots are on different hosts anyway, so name failure domains only")
        if not 0.0 <= self.brake_share <= 1.0:
            raise ValueError(f"brakeShare is {self.brake_share}; write a share between 0 and 1")
        for name in ("brake_number", "grace_pauses", "inline_planning_vms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_file_key(self, name)} is {getattr(self, name)}; it must be 0 or more")
        if not 1 <= self.validation_workers <= 64:
            raise ValueError(f"validationWorkers is {self.validation_workers}; write 1 to 64")
        if self.vm_source == "database" and not self.database_url and not self.data_sources:
            raise ValueError("vmSource is database but databaseUrl is empty, and so is dataSources")
        if self.scheduler_token and self.scheduler_token_file:
            raise ValueError("schedulerToken and schedulerTokenFile are both given; write one of them")

    def address_of(self, source: str) -> str:
        """The database address of the data source of that name; ``BadInput`` where there is none."""
        address = self.data_sources.get(source) or (self.database_url if source == DEFAULT_DATASOURCE else "")
        if not address:
            known = sorted({*self.data_sources, *([DEFAULT_DATASOURCE] if self.database_url else [])})
            raise BadInput(
                f"there is no data source {source!r}",
                place="failover.datasourceName",
                remedy=f"add it to failoverUpkeep.dataSources; known: {', '.join(known) or 'none'}",
            )
        return address

    @property
    def topology_choice(self) -> TopologyChoice:
        """Units of failure and separation, as settings ask for them."""
        return TopologyChoice(
            unit=self.failure_unit, apart=tuple(sorted(set(self.keep_apart))), server_groups=self.server_groups
        )

    @property
    def database_timeout_s(self) -> float:
        """Deadline of one read in seconds."""
        return parse_duration(self.database_timeout)


SECTIONS: dict[str, type[msgspec.Struct]] = {"failover": FailoverConfig, "failoverUpkeep": FailoverUpkeepSettings}
"""Sections of ``outlive.yaml`` that belong to failover."""


SECRET_KEYS = frozenset({"databaseUrl", "dataSources", "schedulerToken"})
"""Keys of ``failoverUpkeep`` that are, or may hold, a secret."""


def _file_key(settings: msgspec.Struct, name: str) -> str:
    return _file_keys(type(settings))[name]


@lru_cache(maxsize=16)
def _file_keys(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


def _check_duration(name: str, text: str | None) -> None:
    if not text:
        return
    try:
        seconds = parse_duration(text)
    except BadInput as error:
        raise ValueError(f"{name}: {error}") from None
    if seconds < 0:
        raise ValueError(f"{name} is {text}; a pause cannot be negative")


def _read_duration(text: str, default: str) -> str:
    return text if text and parse_duration(text) != 0 else default


def _read_number(number: int | None, default: int) -> int:
    return default if number is None else number


class FailoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings that decisions of failover read, filled and consistent."""

    failover: FailoverConfig = FailoverConfig()
    upkeep: FailoverUpkeepSettings = FailoverUpkeepSettings()
    protection: ProtectionSettings = ProtectionSettings()
    scheduler: PlacementSettings = PlacementSettings()

    @property
    def database_address(self) -> str:
        """The database that VMs are read from, where they are."""
        return self.upkeep.address_of(self.failover.datasource_name)

    @property
    def topology_choice(self) -> TopologyChoice:
        """Units of failure and separation."""
        return self.upkeep.topology_choice

    @property
    def plan_settings(self) -> FailoverSettings:
        """Only what plans and coverage are made by: no addresses and no secrets, as another process may get it."""
        failover, upkeep = self.failover, self.upkeep
        return FailoverSettings(
            failover=FailoverConfig(
                flavor_failover_requirements=failover.flavor_failover_requirements,
                trust_hypervisor_location=failover.trust_hypervisor_location,
                use_flavor_group_resources=failover.use_flavor_group_resources,
            ),
            upkeep=FailoverUpkeepSettings(
                profile=upkeep.profile,
                failure_unit=upkeep.failure_unit,
                keep_apart=upkeep.keep_apart,
                server_groups=upkeep.server_groups,
            ),
            protection=self.protection,
            scheduler=self.scheduler,
        )
