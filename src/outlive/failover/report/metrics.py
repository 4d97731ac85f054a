"""Figures about reservations and host capacity, made when somebody asks for them.

``Gauges.collect`` reads what the process has cached and yields fresh series each time, so that a slot that is gone
leaves none behind (docs/reference/failover-operation.md#events-and-metrics). While the caches cannot be believed it
yields nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import OutliveError
from outlive.failover.slots import building_block
from outlive.placement import HANA_TRAIT, placed_on, unused_amounts
from outlive.resources import (
    COMMITTED,
    CPU,
    FAILOVER,
    MEMORY,
    TYPE_LABEL_VALUES,
    ZONE_LABEL,
    Amounts,
    Hypervisor,
    Reservation,
    find_condition,
)

_HOST_LABELS = (
    "compute_host",
    "availability_zone",
    "building_block",
    "cpu_architecture",
    "workload_type",
    "enabled",
    "decommissioned",
    "external_customer",
    "maintenance",
    "os_version",
)
DECOMMISSIONING_TRAIT = "CUSTOM_DECOMMISSIONING"
EXTERNAL_CUSTOMER_TRAIT = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
OS_VERSION_LABEL = "outlive.dev/os-version"


class Gauges:
    """A collector; ``hypervisors`` and ``reservations`` return what is cached, or raise ``Unavailable``."""

    def __init__(
        self, hypervisors: Callable[[], Sequence[Hypervisor]], reservations: Callable[[], Sequence[Reservation]]
    ) -> None:
        self._hypervisors = hypervisors
        self._reservations = reservations

    def collect(self) -> Iterator[Metric]:
        """All series as of now; none where reading is impossible."""
        try:
            hosts, reservations = self._hypervisors(), self._reservations()
        except OutliveError:
            return
        yield from reservation_metrics(reservations)
        yield from host_metrics(hosts, reservations)


def reservation_metrics(reservations: Iterable[Reservation]) -> list[Metric]:
    """How many reservations there are and what they hold, by readiness."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    held: dict[tuple[str, str, str, str], float] = defaultdict(float)
    states: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for one in reservations:
        ready, error = _read_readiness(one)
        counts[(ready, error)] += 1
        for resource, amount in unused_amounts(one, ignore_allocations=True).items():
            held[(ready, error, placed_on(one), resource)] += _to_base_unit(resource, amount)
        found = find_condition(one.status.conditions, "Ready")
        state = {"True": "ready", "False": "error"}.get(ready, "unknown")
        kind = TYPE_LABEL_VALUES.get(one.spec.type, one.spec.type)
        states[(one.spec.scheduling_domain, kind, state, found.reason if found else "")] += 1
    number = GaugeMetricFamily("reservations", "Reservations of all types", labels=("status_ready", "status_error"))
    resources = GaugeMetricFamily(
        "reservations_allocated_resources",
        "What reservations of all types hold: cores, bytes, units",
        labels=("status_ready", "status_error", "host", "resource"),
    )
    state_family = GaugeMetricFamily(
        "reservation_state", "Reservations by state", labels=("domain", "type", "state", "reason")
    )
    for labels, count in sorted(counts.items()):
        number.add_metric(labels, count)
    for held_labels, total in sorted(held.items()):
        resources.add_metric(held_labels, total)
    for state_labels, count in sorted(states.items()):
        state_family.add_metric(state_labels, count)
    return [number, resources, state_family]


def host_metrics(hosts: Iterable[Hypervisor], reservations: Iterable[Reservation]) -> list[Metric]:
    """What each host has, and what it is used for: VMs, commitments, slots, nothing."""
    all_hosts = list(hosts)
    running = {host.name: {one.id for one in host.status.instances} for host in all_hosts}
    failover: dict[str, Amounts] = defaultdict(Amounts)
    reserved: dict[str, Amounts] = defaultdict(Amounts)
    for one in reservations:
        placed = one.status.host and placed_on(one)
        if _read_readiness(one)[0] == "True" and one.spec.scheduling_domain == "nova" and placed:
            if one.spec.type == FAILOVER:
                failover[one.status.host] += one.spec.resources
            elif one.spec.type == COMMITTED:
                # its VMs are in the allocation
                reserved[one.status.host] += unused_amounts(one, running=running.get(one.status.host, ()))
    total = GaugeMetricFamily(
        "kvm_host_capacity_total", "Capacity of a host: cores or bytes", labels=(*_HOST_LABELS, "resource")
    )
    usage = GaugeMetricFamily(
        "kvm_host_capacity_usage",
        "What a host's capacity is used for: cores or bytes",
        labels=(*_HOST_LABELS, "resource", "type"),
    )
    for host in all_hosts:
        capacity = host.effective_capacity()
        if capacity is None:
            continue
        labels = host_labels(host)
        utilized = host.status.allocation or Amounts()
        for resource, shown in ((CPU, "cpu"), (MEMORY, "ram")):
            amounts = {
                "utilized": utilized.get(resource, 0),
                "reserved": reserved[host.name].get(resource, 0),
                "failover": failover[host.name].get(resource, 0),
            }
            amounts["available"] = max(0, capacity.get(resource, 0) - sum(amounts.values()))
            total.add_metric((*labels, shown), _to_base_unit(resource, capacity.get(resource, 0)))
            for kind, amount in amounts.items():
                usage.add_metric((*labels, shown, kind), _to_base_unit(resource, amount))
    return [total, usage]


def host_labels(host: Hypervisor) -> tuple[str, ...]:
    """The values of a host's labels, in the order in which metrics name them."""
    traits = {*host.status.traits, *host.spec.custom_traits}
    disabled = find_condition(host.status.conditions, "HypervisorDisabled")
    return (
        host.name,
        host.metadata.labels.get(ZONE_LABEL, ""),
        building_block(host.name),
        host.status.capabilities.cpu_arch,
        "hana" if HANA_TRAIT in traits else "general-purpose",
        _format_bool(disabled is None or disabled.status != "True"),
        _format_bool(DECOMMISSIONING_TRAIT in traits),
        _format_bool(EXTERNAL_CUSTOMER_TRAIT in traits),
        host.spec.maintenance,
        host.metadata.labels.get(OS_VERSION_LABEL, ""),
    )


def _read_readiness(reservation: Reservation) -> tuple[str, str]:
    """Status of ``Ready`` (``Unknown`` without one), and its message where it is False; commas would split lists."""
    found = find_condition(reservation.status.conditions, "Ready")
    if found is None:
        return "Unknown", ""
    return found.status, found.message.replace(",", ";") if found.status == "False" else ""


def _to_base_unit(resource: str, amount: int) -> float:
    return amount / 1000 if resource == CPU else float(amount)


def _format_bool(truth: bool) -> str:
    return "true" if truth else "false"
