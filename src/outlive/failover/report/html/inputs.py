"""Reports of one look at a cluster: gathers what ``failover.report.html`` shows."""

from __future__ import annotations

from collections import Counter

from outlive.failover.analysis.coverage import CoverageInput, CoverageResult, assess_state
from outlive.failover.analysis.questions import Question
from outlive.failover.analysis.survival import Cases, FailuresInput, FailuresResult, matrix_of
from outlive.failover.analysis.tolerance import ToleranceInput, tolerance
from outlive.failover.offers import free_capacity
from outlive.failover.report.html.coverage import CoverageReport, coverage_report
from outlive.failover.report.html.figures import FleetFigures, HostFigures, Share, group_domain
from outlive.failover.report.html.survival import ShownCase, SurvivalReport, survival_report
from outlive.failover.snapshot import Snapshot
from outlive.failover.topology import HOST_UNIT, topology_of
from outlive.placement.columns import facts_of
from outlive.resources import Amounts, Hypervisor

DOMAINS_JUDGED = 3
"""Failure domains for which tolerance is told besides that of hosts."""


def coverage_picture(gathered: Snapshot, result: CoverageResult, *, source: str, when: str) -> bytes:
    """The report of a coverage."""
    unit = gathered.settings.topology_choice.unit
    views = gathered.observation.hosts
    domains = sorted({name for view in views for name in view.domains})[:DOMAINS_JUDGED]
    judged = {
        one: tolerance(
            ToleranceInput(
                vms=gathered.counted,
                required=gathered.required,
                slots=gathered.observation.slots,
                units=topology_of(views, unit=one).units,
            )
        )
        for one in dict.fromkeys((unit, HOST_UNIT, *domains))
    }
    fleet = fleet_of(gathered, {one.vm: one.host for one in result.uncovered}, source=source, when=when)
    return coverage_report(CoverageReport(fleet=fleet, coverage=result, unit=unit, tolerances=judged))


def survival_picture(
    gathered: Snapshot, question: Question, given: FailuresInput, result: FailuresResult, *, source: str, when: str
) -> bytes:
    """The report of a question about failures, with the case in question or the worst one shown."""
    told = assess_state(
        CoverageInput(
            vms=gathered.counted,
            required=gathered.required,
            slots=gathered.observation.slots,
            hosts=gathered.observation.hosts,
            topology=gathered.topology,
        )
    )
    uncovered = {vm: status.host for vm, status in told.items() if not status.covered}
    fleet = fleet_of(gathered, uncovered, source=source, when=when, domain=question.unit)
    shown = _shown(given, result)
    return survival_report(SurvivalReport(fleet=fleet, question=question, result=result, shown=shown))


def _shown(given: FailuresInput, result: FailuresResult) -> ShownCase | None:
    case = given.cases[0] if given.cases else result.worst[0].case if result.worst else None
    if case is None:
        case = result.lost[0].case if result.lost else None
    if case is None:
        return None
    matrix = matrix_of(given)
    down = frozenset(number for name in case if (number := matrix.unit_number(name)) is not None)
    hosts = {host.name for host in given.hosts} | {vm.host for vm in given.vms}
    return ShownCase(
        case=case,
        hosts=frozenset(host for host in hosts if given.units.get(host, host) in case),
        result=Cases(matrix, given.required, given.priorities).result(down, case),
    )


def fleet_of(
    gathered: Snapshot, uncovered: dict[str, str], *, source: str, when: str, domain: str = ""
) -> FleetFigures:
    """The hosts in figures; ``uncovered``: VM → host, ``domain``: by which hosts are shown, where it is one."""
    observation = gathered.observation
    shown_by = group_domain(observation.hosts, domain)
    views = {view.name: view for view in observation.hosts}
    missing = Counter(uncovered.values())
    running = Counter(vm.host for vm in observation.vms)
    slots = Counter(slot.host for slot in observation.slots)
    used: dict[str, Amounts] = {}
    held: dict[str, Amounts] = {}
    for vm in observation.vms:
        used[vm.host] = used.get(vm.host, Amounts()) + Amounts({"cpu": vm.cpu_milli, "memory": vm.memory_bytes})
    for slot in observation.slots:
        held[slot.host] = held.get(slot.host, Amounts()) + Amounts({"cpu": slot.cpu_milli, "memory": slot.memory_bytes})
    free = free_capacity(gathered.fleet)
    figures = []
    for host in observation.hypervisors:
        name, view = host.name, views.get(host.name)
        in_use = host.status.allocation or used.get(name, Amounts())
        facts = facts_of(host)
        figures.append(
            HostFigures(
                name=name,
                zone=view.zone if view else "",
                group=view.domains.get(shown_by, "") if view else "",
                memory=_share(host, "memory", in_use, held.get(name), free.get(name, (0, 0))[1]),
                cpu=_share(host, "cpu", in_use, held.get(name), free.get(name, (0, 0))[0]),
                vms=running[name],
                slots=slots[name],
                uncovered=missing[name],
                ready=facts.in_service and facts.bad_condition is None,
            )
        )
    return FleetFigures(hosts=tuple(figures), grouped_by=shown_by, source=source, when=when)


def _share(host: Hypervisor, resource: str, used: Amounts, held: Amounts | None, free: int) -> Share:
    capacity = host.effective_capacity()
    amount = None if capacity is None else capacity.get(resource, 0)
    taken, slots = used.get(resource, 0), (held or Amounts()).get(resource, 0)
    other = 0 if amount is None else max(0, amount - taken - slots - free) if free > 0 else 0
    return Share(capacity=amount, used=taken, reserved=slots, committed=other)
