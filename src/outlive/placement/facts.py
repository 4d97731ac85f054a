"""What filters read of one host, normalised once when its record changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from outlive.resources import ZONE_LABEL, Hypervisor, condition
from outlive.resources.taking import WORKING_CONDITIONS

_HYPERVISOR_TYPES: Final = {"ch": "CH", "kvm": "QEMU"}
_OUT_OF_SERVICE: Final = frozenset({"manual", "termination"})
_TENANT_KEY: Final = "filter_tenant_id"


@dataclass(frozen=True)
class HostFacts:
    """Facts of one host. All but ``instances`` change rarely."""

    zone: str | None
    """``None`` without a zone label."""
    traits: frozenset[str]
    allowed_projects: frozenset[str]
    aggregates: frozenset[str]
    """Aggregate uuids."""
    tenants: frozenset[str]
    """Projects for which its aggregates are reserved; empty: not reserved."""
    bad_condition: tuple[str, str, str] | None
    """The first condition (type, status, reason) that keeps requests away."""
    in_service: bool
    high_availability: bool
    maintenance: str
    hypervisor_type: str
    """As flavors say it (``QEMU``, ``CH``); empty when libvirt's word is not known."""
    raw_type: str
    """libvirt's word."""
    cpu_arch: str
    cpu_modes: frozenset[str]
    features: frozenset[str]
    devices: frozenset[str]
    instances: frozenset[str]

    @cached_property
    def migration(self) -> str:
        """Equal for hosts that are equal to live migration."""
        sets = (self.cpu_modes, self.features, self.devices)
        return repr((self.cpu_arch, *(sorted(one) for one in sets)))

    def same_slow_facts(self, other: HostFacts) -> bool:
        """Whether nothing but the instances differs."""
        return all(getattr(self, name) == getattr(other, name) for name in _SLOW)

    def takes_migration_from(self, source: HostFacts) -> bool:
        """Whether a VM of ``source`` can arrive here alive, as far as the two machines say."""
        return (
            self.cpu_arch == source.cpu_arch
            and self.cpu_modes >= source.cpu_modes
            and self.features >= source.features
            and self.devices >= source.devices
        )


_SLOW: Final = tuple(field.name for field in fields(HostFacts) if field.name != "instances")


def facts_of(host: Hypervisor) -> HostFacts:
    """The facts of a host record."""
    spec, status = host.spec, host.status
    machine = status.domain_capabilities
    return HostFacts(
        zone=host.metadata.labels.get(ZONE_LABEL),
        traits=frozenset(status.traits) | frozenset(spec.custom_traits),
        allowed_projects=frozenset(spec.allowed_projects),
        aggregates=frozenset(aggregate.uuid for aggregate in status.aggregates if aggregate.uuid),
        tenants=_tenants(host),
        bad_condition=_bad_condition(host),
        in_service=spec.maintenance not in _OUT_OF_SERVICE,
        high_availability=spec.high_availability is not False,
        maintenance=spec.maintenance,
        hypervisor_type=_HYPERVISOR_TYPES.get(machine.hypervisor_type, ""),
        raw_type=machine.hypervisor_type,
        cpu_arch=status.capabilities.cpu_arch,
        cpu_modes=frozenset(machine.supported_cpu_modes),
        features=frozenset(machine.supported_features),
        devices=frozenset(machine.supported_devices),
        instances=frozenset(instance.id for instance in status.instances),
    )


def _bad_condition(host: Hypervisor) -> tuple[str, str, str] | None:
    """The first condition with a status other than the wanted one; absent conditions are fine.

    A host that is lost, or that is being emptied, counts as one in such a condition.
    """
    if host.status.lost:
        return "Lost", "True", f"fence {host.status.lost}"
    if host.closed():
        return "Emptied", "True", host.status.domain_state or "drain"
    for kind, wanted in WORKING_CONDITIONS:
        found = condition(host.status.conditions, kind)
        if found is not None and found.status != wanted:
            return kind, found.status, found.reason
    return None


def _tenants(host: Hypervisor) -> frozenset[str]:
    """Projects named by the metadata of the host's aggregates; several aggregates add up."""
    found: set[str] = set()
    for aggregate in host.status.aggregates:
        for key, value in aggregate.metadata.items():
            if key.startswith(_TENANT_KEY):
                found.update(part for piece in value.split(",") if (part := piece.strip()))
    return frozenset(found)
