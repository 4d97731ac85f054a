"""Every step that a pipeline may name, and how its parameters are read."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from outlive.base.errors import BadInput
from outlive.placement.filters.capacity import EnoughCapacity
from outlive.placement.filters.groups import Affinity, AntiAffinity
from outlive.placement.filters.hardware import (
    Accelerators,
    HypervisorCapabilities,
    ImageProperties,
    LiveMigratable,
    PackedVirtqueue,
    RequestedTraits,
)
from outlive.placement.filters.location import CorrectZone, ExcludeHosts, HostInstructions, RequestedDestination
from outlive.placement.filters.quota import QuotaEnforcement
from outlive.placement.filters.service import Maintenance, StatusConditions
from outlive.placement.filters.tenancy import AggregateTenants, AllowedProjects, ExternalCustomer
from outlive.placement.steps import Filter, Step, Weigher
from outlive.placement.weighers.affinity import SoftAffinity
from outlive.placement.weighers.commitments import CommittedReservations
from outlive.placement.weighers.sizes import BinPack, PreferSmallerHosts
from outlive.placement.weighers.slots import FailoverEvacuation, SlotConsolidation
from outlive.resources import pipelines

FILTERS: Final[Mapping[str, type[Filter]]] = MappingProxyType(
    {
        step.name: step
        for step in (
            Accelerators,
            Affinity,
            AggregateTenants,
            AllowedProjects,
            AntiAffinity,
            CorrectZone,
            EnoughCapacity,
            ExcludeHosts,
            ExternalCustomer,
            HostInstructions,
            HypervisorCapabilities,
            ImageProperties,
            LiveMigratable,
            Maintenance,
            PackedVirtqueue,
            QuotaEnforcement,
            RequestedDestination,
            RequestedTraits,
            StatusConditions,
        )
    }
)
WEIGHERS: Final[Mapping[str, type[Weigher]]] = MappingProxyType(
    {
        step.name: step
        for step in (
            BinPack,
            CommittedReservations,
            FailoverEvacuation,
            PreferSmallerHosts,
            SlotConsolidation,
            SoftAffinity,
        )
    }
)
TENANT_FILTERS: Final[tuple[type[Filter], ...]] = (AllowedProjects, AggregateTenants)
"""What keeps VMs off hosts that are set aside for others."""

_VALUES: Final = ("string_value", "bool_value", "int_value", "float_value", "string_list_value", "float_map_value")


def parameters(step: pipelines.Step, kind: type[Step]) -> msgspec.Struct:
    """The step's parameters; ``BadInput`` lists everything that is wrong with them."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for parameter in step.params:
        given = [value for name in _VALUES if (value := getattr(parameter, name)) is not None]
        if parameter.key in values:
            wrong.append(f"{parameter.key} is given twice")
        elif len(given) != 1:
            wrong.append(f"{parameter.key} has {len(given)} values instead of one")
        else:
            values[parameter.key] = given[0]
    known = _known(kind.params_type)
    wrong += [problem for key, value in values.items() if (problem := _problem(key, value, known))]
    if not wrong:
        try:
            return msgspec.convert(values, kind.params_type)
        except msgspec.ValidationError as error:
            wrong.append(str(error))
    raise BadInput(
        f"step {step.name}: {'; '.join(wrong)}",
        remedy=f"give each parameter once, with one value; known are: {', '.join(known) or 'none'}",
    )


@functools.cache
def _known(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Parameter → its type: asked for every step of every pipeline that is built, and there are few kinds."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _problem(key: str, value: Any, known: Mapping[str, Any]) -> str:
    """What is wrong with one parameter by itself; empty when nothing is."""
    if key not in known:
        return f"{key} is not known"
    numbers = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        return f"{key} is not finite"
    try:
        msgspec.convert(value, known[key])
    except msgspec.ValidationError as error:
        return f"{key}: {error}"
    return ""
