"""What a ``Hypervisor`` of ``kvm.cloud.sap/v1`` means as a host of ours: pure (docs/how-to/hypervisors.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import BadInput
from outlive.resources import (
    CREATOR_LABEL,
    ZONE_LABEL,
    Aggregate,
    Amounts,
    Condition,
    Hypervisor,
    Instance,
    ObjectMeta,
    find_condition,
    with_condition,
)
from outlive.resources.foreign import CloudHypervisor, CloudHypervisorSpec, CloudHypervisorStatus, ForeignCondition

SOURCE: Final = "kvm.cloud.sap"
"""In labels of hosts: who made them."""
CLUSTER_LABEL: Final = "outlive.dev/inventory-cluster"
"""Of a mirrored host: the cluster of the settings that its object is in."""
MAINTENANCE: Final = "Maintenance"
"""Condition of a mirrored host: that ``spec.maintenance`` of its object names one. Nothing is done about it here."""
_MAINTENANCES: Final[Mapping[str, str]] = {
    "manual": "Manual",
    "auto": "Auto",
    "ha": "HighAvailability",
    "termination": "Termination",
}

T = TypeVar("T")
_replace = msgspec.structs.replace


def make_host(seen: CloudHypervisor, old: Hypervisor | None, *, cluster: str, now: datetime) -> Hypervisor:
    """The host as its object has it. What the object does not say stays, such as an operator's labels and fencing.

    ``BadInput`` names what is not understood.
    """
    before = old if old is not None else Hypervisor(metadata=ObjectMeta(name=seen.name))
    said = _value_or(seen.spec, CloudHypervisorSpec())
    facts = _value_or(seen.status, CloudHypervisorStatus())
    labels = {**before.metadata.labels, CREATOR_LABEL: SOURCE, CLUSTER_LABEL: cluster}
    labels.pop(ZONE_LABEL, None)
    if zone := zone_of(seen):
        labels[ZONE_LABEL] = zone
    overcommit = _value_or(said.overcommit, {})
    if small := sorted(name for name, ratio in overcommit.items() if not ratio >= 1.0):
        raise BadInput(
            f"spec.overcommit of {small[0]} is {overcommit[small[0]]}", place=seen.name, remedy="1.0 or more"
        )
    spec = _replace(
        before.spec,
        custom_traits=_value_or(said.custom_traits, ()),
        allowed_projects=_value_or(said.allowed_projects, ()),
        groups=tuple(_group_names(_value_or(said.groups, ()))),
        overcommit=overcommit,
        high_availability=_value_or(said.high_availability, None),
    )
    capacity = _parse_amounts(facts.capacity, "capacity", seen.name)
    instances = tuple(
        Instance(id=one.id, name=_value_or(one.name, ""), active=_value_or(one.active, False))
        for one in _value_or(facts.instances, ())
    )
    machine = before.status.domain_capabilities
    status = _replace(
        before.status,
        capacity=capacity,
        # always written where there is a capacity: weighers do not fall back to it
        effective_capacity=_parse_amounts(facts.effective_capacity, "effectiveCapacity", seen.name) or capacity,
        allocation=_parse_amounts(facts.allocation, "allocation", seen.name),
        instances=instances,
        num_instances=_value_or(facts.num_instances, len(instances)),
        traits=_value_or(facts.traits, ()),
        aggregates=tuple(
            Aggregate(name=one.name, uuid=_value_or(one.uuid, ""), metadata=_value_or(one.metadata, {}))
            for one in _value_or(facts.aggregates, ())
        ),
        conditions=_host_conditions(seen, said, facts, before.status.conditions, now),
        evicted=_value_or(facts.evicted, False),
        domain_capabilities=_replace(machine, hypervisor_type=machine.hypervisor_type or "kvm"),
        source=SOURCE,
    )
    if status != before.status:
        status = _replace(status, observed_at=now)
    return _replace(before, metadata=_replace(before.metadata, labels=labels), spec=spec, status=status)


def vanished_host(host: Hypervisor, now: datetime) -> Hypervisor:
    """The host whose object is not there any more: no slot is there until it is seen again."""
    message = "its cluster does not have its object any more"
    gone = Condition(type="Ready", status="False", reason="Vanished", message=message, last_transition_time=now)
    old = find_condition(host.status.conditions, "Ready")
    if old is not None and (old.status, old.reason) == (gone.status, gone.reason):
        return host
    return _replace(host, status=_replace(host.status, conditions=with_condition(host.status.conditions, gone)))


def zone_of(seen: CloudHypervisor) -> str:
    """The zone that the object names, or none."""
    return seen.metadata.labels.get(ZONE_LABEL, "")


def has_vm_on(host: Hypervisor, placed: Mapping[str, str]) -> bool:
    """Whether a VM is on the host: by its source, or as reported last and placed elsewhere by nobody.

    ``placed``: VM → host, of every VM that the source of VMs knows.
    """
    name = host.name
    reported = any(one.active and placed.get(one.id, name) == name for one in host.status.instances)
    return reported or name in placed.values()


def _host_conditions(
    seen: CloudHypervisor,
    said: CloudHypervisorSpec,
    facts: CloudHypervisorStatus,
    before: tuple[Condition, ...],
    now: datetime,
) -> tuple[Condition, ...]:
    """Those of the object, and what its maintenance says."""
    found = tuple(_read_condition(one, seen.name) for one in _value_or(facts.conditions, ()))
    word = _value_or(said.maintenance, "")
    if not word:
        return found
    maintained = Condition(
        type=MAINTENANCE,
        status="True",
        reason=_MAINTENANCES.get(word, "Other"),
        message=f"spec.maintenance of its object is {word[:80]}",
        last_transition_time=now,
    )
    kept = tuple(one for one in before if one.type == MAINTENANCE)
    return (*found, *with_condition(kept, maintained))


def _read_condition(one: ForeignCondition, name: str) -> Condition:
    fields: dict[str, Any] = {"type": one.type, "status": one.status}
    fields |= {"reason": _value_or(one.reason, ""), "message": _value_or(one.message, "")}
    fields |= {"lastTransitionTime": _value_or(one.last_transition_time, None)}
    try:
        return msgspec.convert(fields, Condition, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"condition {one.type!r}: {error}", place=name, remedy="mend the object") from None


def _parse_amounts(raw: Any, field: str, name: str) -> Amounts | None:
    quantities = _value_or(raw, None)
    if quantities is None:
        return None
    try:
        return Amounts.parse(quantities)
    except BadInput as error:
        raise BadInput(f"status.{field}: {error.message}", place=name, remedy=error.remedy) from None


def _group_names(groups: tuple[Any, ...]) -> Iterator[str]:
    """Groups by name, whether an entry is one or has one."""
    for one in groups:
        name = one.get("name") if isinstance(one, dict) else one
        if isinstance(name, str) and name:
            yield name


def _value_or(value: T | UnsetType | None, otherwise: T) -> T:
    """The value of a foreign field; ``otherwise`` where it is absent or null."""
    return otherwise if value is None or value is UNSET else value
