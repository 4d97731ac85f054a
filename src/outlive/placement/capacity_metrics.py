"""What flavor groups have to sell, as metrics that are read from the objects when somebody asks
(docs/reference/placement.md#metrics).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.resources import MEMORY, FlavorCapacity, FlavorGroupCapacity, find_condition

GIB: Final = 2**30
_FLAVOR: Final = ("flavor_group", "az", "flavor_name")
_GROUP: Final = ("flavor_group", "az")
_PREFIX: Final = "committed_resource"
Value = tuple[tuple[str, ...], float]
"""Values of labels, and the figure."""


def capacity_metrics(groups: Iterable[FlavorGroupCapacity]) -> Iterator[Metric]:
    """Every figure of every group in every zone. Memory in GiB."""
    listed = sorted(groups, key=lambda one: (one.spec.flavor_group, one.spec.availability_zone))
    for name, doc, flavor_figure in _OF_FLAVORS:
        values = [
            ((*_labels_of(one), flavor.flavor_name), float(flavor_figure(flavor)))
            for one in listed
            for flavor in one.status.flavors
        ]
        yield _build_family(name, doc, _FLAVOR, values)
    for name, doc, group_figure in _OF_GROUPS:
        yield _build_family(name, doc, _GROUP, [(_labels_of(one), group_figure(one)) for one in listed])
    for name, doc, group_figure in _OF_SMALLEST:
        values = [
            ((*_labels_of(one), one.status.smallest_flavor_name), group_figure(one))
            for one in listed
            if one.status.smallest_flavor_name
        ]
        yield _build_family(name, doc, _FLAVOR, values)


def _labels_of(one: FlavorGroupCapacity) -> tuple[str, str]:
    return one.spec.flavor_group, one.spec.availability_zone


def _build_family(name: str, doc: str, labels: tuple[str, ...], values: Iterable[Value]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", doc, labels=labels)
    for where, figure in values:
        family.add_metric(where, figure)
    return family


def _ready_value(one: FlavorGroupCapacity) -> float:
    found = find_condition(one.status.conditions, "Ready")
    return float(found is not None and found.status == "True")


_OF_FLAVORS: Final[tuple[tuple[str, str, Callable[[FlavorCapacity], int]], ...]] = (
    ("capacity_vm_slots_empty_datacenter", "VMs that fit if nothing runs", lambda one: one.total_capacity_vm_slots),
    ("capacity_vm_slots_placeable", "VMs that fit now", lambda one: one.placeable_vms),
    ("capacity_hosts_empty_datacenter", "Hosts that take one if nothing runs", lambda one: one.total_capacity_hosts),
    ("capacity_hosts_placeable", "Hosts that take one now", lambda one: one.placeable_hosts),
)
_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[FlavorGroupCapacity], float]], ...]] = (
    ("committed_gib", "Memory of active commitments", lambda one: one.status.committed_capacity_bytes / GIB),
    (
        "committed_reservations",
        "Active commitments in VMs of the smallest flavor",
        lambda one: float(one.status.committed_capacity),
    ),
    ("capacity_ready", "Whether the figures are up to date", _ready_value),
)
_OF_SMALLEST: Final[tuple[tuple[str, str, Callable[[FlavorGroupCapacity], float]], ...]] = (
    ("running_instances", "VMs that run", lambda one: float(one.status.running_instances)),
    (
        "free_capacity_gib",
        "Free memory, of which other groups may use some as well",
        lambda one: one.status.free_capacity.get(MEMORY, 0) / GIB,
    ),
    (
        "exclusively_free_capacity_gib",
        "Free memory after the split between groups",
        lambda one: one.status.exclusively_free_capacity.get(MEMORY, 0) / GIB,
    ),
    (
        "exclusively_free_slots",
        "The same in VMs of the smallest flavor",
        lambda one: float(one.status.exclusively_free_slots),
    ),
)
