"""All settings of a role in one place: which sections there are, and what must hold between them.

A section belongs to the package that reads it; here they meet. What is wrong only in combination, or needs more than
types to see (a malformed pattern), is found here, before anything starts (docs/reference/configuration.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from outlive.base import BadInput
from outlive.commitments import CommitmentSettings
from outlive.failover import (
    Demands,
    FailoverConfig,
    FailoverSettings,
    FailoverUpkeepSettings,
    ProtectionSettings,
    check_protection,
)
from outlive.inventory import InventorySettings, OpenStackSettings
from outlive.network import NetworkSettings
from outlive.node.vm import NodeSettings
from outlive.placement import PlacementSettings
from outlive.runtime import ROUNDS_LEAST, AuditSettings, BackupSettings, Duration, NotifySettings

_PREFIX = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,40}\Z")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important events that are logged."""
    form: Literal["console", "json"] = "console"
    """Lines for people, or one JSON document an event."""
    file: str = ""
    """File to log to, opened anew on SIGHUP; empty: standard error."""


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How metrics are named."""

    prefix: str = "outlive_"
    """Prefix of every metric."""

    def __post_init__(self) -> None:
        if self.prefix and not _PREFIX.match(self.prefix):
            raise ValueError(f"{self.prefix!r} cannot begin a metric's name; write letters, digits, '_' and ':'")


class ElectionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Leader election among equal processes."""

    renew: Duration = Duration(2.0)
    """How often the leader renews."""
    silence: Duration = Duration(12.0)
    """Silence after which another process takes over; at least four renewals."""

    def __post_init__(self) -> None:
        if self.renew <= 0 or self.silence < ROUNDS_LEAST * self.renew:
            raise ValueError(f"silence {self.silence} is less than {ROUNDS_LEAST} renewals of {self.renew}")


SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "failover": FailoverConfig,
    "failoverUpkeep": FailoverUpkeepSettings,
    "protection": ProtectionSettings,
    "scheduler": PlacementSettings,
    "commitments": CommitmentSettings,
    "openstack": OpenStackSettings,
    "inventory": InventorySettings,
    "node": NodeSettings,
    "election": ElectionSettings,
    "metrics": MetricsSettings,
    "log": LogSettings,
    "audit": AuditSettings,
    "notify": NotifySettings,
    "backup": BackupSettings,
    "network": NetworkSettings,
}
"""Sections of ``outlive.yaml`` that every role reads."""


class RoleSettings(FailoverSettings, frozen=True, kw_only=True):
    """The settings of a role, filled and consistent."""

    commitments: CommitmentSettings = CommitmentSettings()
    openstack: OpenStackSettings = OpenStackSettings()
    inventory: InventorySettings = InventorySettings()
    node: NodeSettings = NodeSettings()
    election: ElectionSettings = ElectionSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    audit: AuditSettings = AuditSettings()
    notify: NotifySettings = NotifySettings()
    backup: BackupSettings = BackupSettings()
    network: NetworkSettings = NetworkSettings()


def role_settings(sections: Mapping[str, Any]) -> RoleSettings:
    """The loaded sections as one whole; ``BadInput`` names the key that does not go with the rest."""
    upkeep: FailoverUpkeepSettings = sections["failoverUpkeep"]
    failover: FailoverConfig = sections["failover"].apply_defaults().adapt_to_profile(upkeep.profile)
    check_requirements(failover)
    protection: ProtectionSettings = sections["protection"]
    check_protection(protection)
    if upkeep.vm_source == "database":
        upkeep.address_of(failover.datasource_name)
    if upkeep.vm_source == "nova" and not sections["openstack"].cloud:
        raise BadInput(
            "VMs are to be read from Nova, and no cloud is named",
            place="failoverUpkeep.vmSource",
            remedy="set openstack.cloud (docs/how-to/openstack.md)",
        )
    openstack: OpenStackSettings = sections["openstack"]
    if sections["inventory"].source and openstack.cloud and openstack.inventory:
        raise BadInput(
            "hosts are to be kept from Nova and from objects in other clusters",
            place="inventory.source",
            remedy="set openstack.inventory: false",
        )
    if sections["inventory"].source and sections["scheduler"].overcommit_mappings:
        raise BadInput(
            "overcommit is to be set by traits, and taken over from the objects of hosts",
            place="scheduler.overcommitMappings",
            remedy="leave it to the objects: set it to []",
        )
    return RoleSettings(
        failover=failover,
        upkeep=upkeep,
        protection=protection,
        scheduler=sections["scheduler"],
        commitments=sections["commitments"],
        openstack=openstack,
        inventory=sections["inventory"],
        node=sections["node"],
        election=sections["election"],
        metrics=sections["metrics"],
        log=sections["log"],
        audit=sections["audit"],
        notify=sections["notify"],
        backup=sections["backup"],
        network=sections["network"],
    )


def check_requirements(failover: FailoverConfig) -> None:
    """``BadInput`` for a malformed pattern or a negative count."""
    place = "failover.flavorFailoverRequirements"
    for pattern, why in Demands(failover.requirements).malformed.items():
        raise BadInput(why, place=f"{place}.{pattern}", remedy="see docs/reference/failover-rules.md#patterns")
    for pattern, count in failover.requirements.items():
        if count < 0:
            raise BadInput(f"{count} slots are required", place=f"{place}.{pattern}", remedy="write 0 or more")
