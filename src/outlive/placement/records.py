"""Records that steps work with: load and contention of hosts, as somebody extracts them into ``Knowledge`` objects.

A step that needs records names them; a pipeline leaves it out while they are missing, not ready or empty
(docs/reference/placement.md#records).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from outlive.base import get_logger
from outlive.placement.knowledge import is_ready
from outlive.resources import Knowledge

HOST_UTILIZATION: Final = "host-utilization"
LONG_TERM_CONTENTION: Final = "vmware-long-term-contended-hosts"
SHORT_TERM_CONTENTION: Final = "vmware-short-term-contended-hosts"
PROJECT_NOISINESS: Final = "vmware-project-noisiness"
CPU_STEAL: Final = "kvm-libvirt-domain-cpu-steal-pct"
_log = get_logger("placement")


class HostUtilization(msgspec.Struct, frozen=True, rename="camel"):
    """How full a host is, of what can be allocated at all. Megabytes and cores."""

    compute_host: str
    ram_used_mb: float = msgspec.field(default=0.0, name="ramUsedMB")
    total_ram_allocatable_mb: float = msgspec.field(default=0.0, name="totalRAMAllocatableMB")
    vcpus_used: float = 0.0
    total_vcpus_allocatable: float = msgspec.field(default=0.0, name="totalVCPUsAllocatable")


class HostContention(msgspec.Struct, frozen=True, rename="camel"):
    """How much VMs of a host wait for processors, in percent."""

    compute_host: str
    avg_cpu_contention: float = msgspec.field(default=0.0, name="avgCPUContention")
    max_cpu_contention: float = msgspec.field(default=0.0, name="maxCPUContention")


class ProjectNoisiness(msgspec.Struct, frozen=True, rename="camel"):
    """How much processor time the VMs of a project take on a host, in percent."""

    project: str
    compute_host: str
    avg_cpu_of_project: float = msgspec.field(default=0.0, name="avgCPUOfProject")


class CpuSteal(msgspec.Struct, frozen=True, rename="camel"):
    """How much processor time others have taken from a VM, in percent, at most over the time observed."""

    instance_uuid: str = msgspec.field(name="instanceUUID")
    host: str
    max_steal_time_pct: float = 0.0


Record = HostUtilization | HostContention | ProjectNoisiness | CpuSteal
FORMS: Final[Mapping[str, type[Record]]] = MappingProxyType(
    {
        HOST_UTILIZATION: HostUtilization,
        LONG_TERM_CONTENTION: HostContention,
        SHORT_TERM_CONTENTION: HostContention,
        PROJECT_NOISINESS: ProjectNoisiness,
        CPU_STEAL: CpuSteal,
    }
)
"""Name of the ``Knowledge`` → what its records are."""
T = TypeVar("T", bound=Record)


class KnowledgeRecords:
    """The records of all ``Knowledge`` objects that steps know."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[Record, ...]] = {}

    def upsert(self, knowledge: Knowledge) -> bool:
        """The object exists and looks like this now; whether it can be used now and could not before, or vice versa."""
        form = FORMS.get(knowledge.name)
        if form is None:
            return False
        found: tuple[Record, ...] = ()
        if is_ready(knowledge):
            found = tuple(one for raw in knowledge.status.raw.features if (one := _read(raw, form)) is not None)
            left_out = len(knowledge.status.raw.features) - len(found)
            if left_out:
                _log.warning("placement.records_unreadable", knowledge=knowledge.name, records=left_out)
        return self._put(knowledge.name, found)

    def remove(self, name: str) -> bool:
        """The object is gone; whether it could be used before."""
        return self._put(name, ())

    def _put(self, name: str, found: tuple[Record, ...]) -> bool:
        could = name in self._records
        if found:
            self._records[name] = found
        else:
            self._records.pop(name, None)
        return could != bool(found)

    def usable_names(self) -> frozenset[str]:
        """Names of what has records."""
        return frozenset(self._records)

    def records_of(self, name: str, form: type[T]) -> tuple[T, ...]:
        """The records of that name; empty where there are none."""
        return tuple(one for one in self._records.get(name, ()) if isinstance(one, form))


def _read(raw: Mapping[str, Any], form: type[Record]) -> Record | None:
    """A record; ``None`` where it cannot be read, or a figure is no number: the others count nevertheless."""
    try:
        found = msgspec.convert(raw, form, strict=False)
    except msgspec.ValidationError:
        return None
    figures = (value for value in msgspec.structs.astuple(found) if isinstance(value, float))
    return found if all(map(math.isfinite, figures)) else None
