"""What placement says about one VM, host by host, with every step asked about every host.

A ranking stops at the first step that refuses a host; a remedy must know whether that step is the only one. Masks are
asked for whole fleets and sentences only of the first refusing step, except about room, where the amounts say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from outlive.base import OutliveError
from outlive.failover.analysis.explain.model import (
    AnswerSource,
    ExplainedFleet,
    NewHost,
    PlacementAnswer,
    PlacementRefusal,
)
from outlive.failover.analysis.explain.vm import Explainer
from outlive.failover.calls import Caller, pins_projects, placement_class, places_lost
from outlive.failover.offers import free_capacity, offer_of
from outlive.failover.planner.actions import PlacementOffer
from outlive.failover.slots import ResolvedSize
from outlive.failover.snapshot import Snapshot
from outlive.placement import (
    HYPERVISOR_TYPE,
    STEP_ERRORS,
    BoolVector,
    BoundFilter,
    Engine,
    FactsFilter,
    Fleet,
    PipelineRun,
    PlacementRequest,
    StepFailed,
    VmView,
)
from outlive.placement.filters import EnoughCapacity, compute_demand
from outlive.placement.fleet import NEVER
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    Capabilities,
    DomainCapabilities,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    encode_canonical,
)

TEMPLATE: Final = "new-host"
_TRAIT, _ARCH = "trait:", "capabilities:cpu_arch"
_ACCELERATOR_SPEC, _ACCELERATOR_TRAIT = "accel:device_profile", "COMPUTE_ACCELERATORS"
_LIBVIRT = {"QEMU": "kvm", "CH": "ch"}
_OPERATOR_ENDS: Final = frozenset({"s==", "==", "=", "<in>", "<or>"})


def answer_of(engine: Engine, caller: Caller, vm: VmView, size: ResolvedSize) -> PlacementAnswer:
    """Both searches of a slot for this VM, taken apart."""
    book = _Book()
    reuse_call, new_call = (
        ask(vm, size, ignore=(vm.host,)).request for ask in (caller.build_reuse_call, caller.build_new_call)
    )
    reuse, against_reuse, reuse_run = _search(engine, reuse_call, book)
    new, against_new, run = _search(engine, new_call, book)
    full = frozenset(number for number, one in enumerate(book.refusals) if one.is_capacity)
    room, need = (
        ({}, (0, 0)) if run is None else _find_room(engine, new_call, run, _hosts_refused_by(against_new, full))
    )
    reuse_room = (
        {}
        if reuse_run is None
        else _find_room(engine, reuse_call, reuse_run, _hosts_refused_by(against_reuse, full))[0]
    )
    return PlacementAnswer(
        reuse=reuse,
        new=new,
        refusals=tuple(book.refusals),
        against_new=against_new,
        against_reuse=against_reuse,
        room=room,
        reuse_room=reuse_room,
        need=need,
        new_host=new_host(engine, caller, vm, size),
    )


class _Book:
    """Refusals by number, each once."""

    def __init__(self) -> None:
        self.refusals: list[PlacementRefusal] = []
        self._numbers: dict[tuple[str, str, str], int] = {}

    def number_refusal(self, step: str, code: str = "", message: str = "") -> int:
        key = (step, code, message)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.refusals)
            self.refusals.append(PlacementRefusal(step=step, code=code, message=message))
        return number


def _search(
    engine: Engine, request: PlacementRequest, book: _Book
) -> tuple[PlacementOffer, dict[str, tuple[int, ...]], PipelineRun | None]:
    try:
        offer = offer_of(engine.rank(request))
        pipeline = engine.select_pipeline(request)
        run = engine.start(request, pipeline)
    except OutliveError as error:
        return PlacementOffer(error=str(error)), {}, None
    refusing: list[tuple[BoundFilter, BoolVector, PlacementRefusal | None]] = []
    """Filters with the hosts that they refuse, and with their failure if they refuse all for that."""
    for bound in engine.select_filters(request, pipeline):
        step = bound.step
        if step.skips(run):
            continue
        try:
            refused = run.candidates & ~step.mask(run)
        except STEP_ERRORS as failure:
            if bound.on_error == "reject":
                code = failure.code if isinstance(failure, StepFailed) else "step-crashed"
                refusal = PlacementRefusal(step=step.name, code=code, message=str(failure))
                refusing.append((bound, run.candidates, refusal))
        else:
            if refused.any():
                refusing.append((bound, refused, None))
    return offer, _refusals_by_host(run, refusing, book), run


def _refusals_by_host(
    run: PipelineRun, refusing: list[tuple[BoundFilter, BoolVector, PlacementRefusal | None]], book: _Book
) -> dict[str, tuple[int, ...]]:
    """Host → numbers of refusals, the first with its sentence."""
    if not refusing:
        return {}
    masks = np.stack([mask for _, mask, _ in refusing])
    at = np.flatnonzero(masks.any(axis=0))
    codes = np.left_shift(1, np.arange(len(refusing)), dtype=np.int64) @ masks[:, at]
    first = masks[:, at].argmax(axis=0)
    found: dict[str, tuple[int, ...]] = {}
    for place, (bound, _, failure) in enumerate(refusing):
        chosen = np.flatnonzero(first == place)
        if not len(chosen):
            continue
        rows: list[int] = at[chosen].tolist()
        names: list[str] = run.names[rows].tolist() if not run.extra else [run.name_at(row) for row in rows]
        numbers = _First(bound, failure, run, book).number_refusals(rows, names)
        later = [step.step.name for step, _, _ in refusing]
        rest = {
            code: tuple(book.number_refusal(later[one]) for one in range(place + 1, len(refusing)) if code >> one & 1)
            for code in np.unique(codes[chosen]).tolist()
        }
        shared = {(number, code): (number, *rest[code]) for number in set(numbers) for code in rest}
        found.update(
            zip(names, map(shared.__getitem__, zip(numbers, codes[chosen].tolist(), strict=True)), strict=True)
        )
    return found


class _First:
    """What one step says against hosts: asked once for hosts that are alike to it."""

    def __init__(self, bound: BoundFilter, failure: PlacementRefusal | None, run: PipelineRun, book: _Book) -> None:
        self._step, self._run, self._book = bound.step, run, book
        self._one: int | None = None
        if failure is not None:
            self._one = book.number_refusal(failure.step, failure.code, failure.message)
        elif isinstance(bound.step, EnoughCapacity):
            self._one = book.number_refusal(bound.step.name)

    def number_refusals(self, rows: list[int], names: list[str]) -> list[int]:
        if self._one is not None:
            return [self._one] * len(names)
        if not isinstance(self._step, FactsFilter) or self._run.extra:
            return [self._number_refusal(name) for name in names]
        classes: list[int] = self._run.fleet.columns.classes[rows].tolist()
        known = {number: self._number_refusal(name) for number, name in dict(zip(classes, names, strict=True)).items()}
        return [known[number] for number in classes]

    def _number_refusal(self, host: str) -> int:
        why = self._step.check(self._run, host)
        return (
            self._book.number_refusal(self._step.name)
            if why is None
            else self._book.number_refusal(why.step, why.code, why.message)
        )


def _hosts_refused_by(against: Mapping[str, tuple[int, ...]], refusals: frozenset[int]) -> list[str]:
    """The hosts against which one of these refusals is said."""
    return [host for host, why in against.items() if not refusals.isdisjoint(why)] if refusals else []


def _find_room(
    engine: Engine, request: PlacementRequest, run: PipelineRun, hosts: list[str]
) -> tuple[dict[str, tuple[int, int]], tuple[int, int]]:
    """What the capacity filter finds free on these hosts, and what it asks for."""
    filters = engine.select_filters(request, engine.select_pipeline(request))
    step = next((bound.step for bound in filters if isinstance(bound.step, EnoughCapacity)), None)
    if not isinstance(step, EnoughCapacity):
        return {}, (0, 0)
    fleet = engine.fleet
    at = np.array([-1 if (row := fleet.find_row(host)) is None else row for host in hosts], dtype=np.intp)
    free = fleet.available_amounts(step.build_query(run))[:2, at]
    known = (at >= 0) & (free > NEVER // 2).all(axis=0)
    figures = zip(hosts, known.tolist(), free.T.tolist(), strict=True)
    room = {host: (cpu, memory) for host, trusted, (cpu, memory) in figures if trusted}
    try:
        needed = compute_demand(request, engine.settings)
    except StepFailed:
        return room, (0, 0)
    return room, (needed.get("cpu", 0), needed.get("memory", 0))


def new_host(engine: Engine, caller: Caller, vm: VmView, size: ResolvedSize) -> NewHost | None:
    """The least host that placement would take for this VM; ``None`` where none can be described.

    Made from what the flavor asks for, and shown to the filters.
    """
    requests = [ask(vm, size, ignore=(vm.host,)).request for ask in (caller.build_new_call, caller.build_reuse_call)]
    specs = requests[0].extra_specs
    traits = {key[len(_TRAIT) :] for key, value in specs.items() if key.startswith(_TRAIT) and value == "required"}
    if _ACCELERATOR_SPEC in specs:
        traits.add(_ACCELERATOR_TRAIT)
    try:
        memory_bytes = compute_demand(requests[0], engine.settings).get("memory", 0)
    except StepFailed:
        memory_bytes = requests[0].need.get("memory", 0)
    described = NewHost(
        zone=vm.zone,
        traits=tuple(sorted(traits)),
        cpu_arch=_first_plain_value(specs.get(_ARCH, "")),
        hypervisor_type=_first_plain_value(specs.get(HYPERVISOR_TYPE, "QEMU")).upper(),
        cpu_milli=max(size.cpu_milli, requests[0].need.get("cpu", 0)),
        memory_bytes=memory_bytes,
    )
    fleet = Fleet(engine.settings)
    fleet.upsert_host(hypervisor_of(TEMPLATE, described))
    alone = Engine(fleet, engine.pipelines)
    try:
        accepted = all(len(alone.rank(request)) for request in requests)
    except OutliveError:
        return None
    return described if accepted else None


def _first_plain_value(value: str) -> str:
    """The first value of an extra spec that may begin with an operator."""
    words = value.split()
    return next((word for word in words if word not in _OPERATOR_ENDS), "")


def hypervisor_of(name: str, host: NewHost) -> Hypervisor:
    """Such a host, empty, as a resource."""
    amounts = Amounts(cpu=host.cpu_milli, memory=host.memory_bytes)
    return Hypervisor(
        metadata=ObjectMeta(name=name, labels={ZONE_LABEL: host.zone} if host.zone else {}),
        status=HypervisorStatus(
            capacity=amounts,
            allocation=Amounts(cpu=0, memory=0),
            traits=host.traits,
            capabilities=Capabilities(cpu_arch=host.cpu_arch),
            domain_capabilities=DomainCapabilities(
                hypervisor_type=_LIBVIRT.get(host.hypervisor_type, host.hypervisor_type.lower())
            ),
        ),
    )


ANSWERS_KEPT = 256
"""Answers of placement that are remembered; beyond it all are forgotten and asked for again."""


class EngineAnswers(AnswerSource):
    """Asks the engine over what was gathered, once for each kind of VM."""

    def __init__(self, gathered: Snapshot) -> None:
        self._engine = gathered.engine
        lost = places_lost(gathered.observation.hypervisors)
        self._caller = Caller(profile=gathered.settings.upkeep.profile, lost=lambda: lost)
        self._with_project = pins_projects(gathered.observation.hypervisors)
        self._known: dict[str, PlacementAnswer] = {}

    def find_answer(self, vm: VmView, size: ResolvedSize) -> PlacementAnswer:
        """What placement says."""
        places = self._caller.lost_places_of(vm)
        name = placement_class(vm, size, with_project=self._with_project, places=places)
        kind = encode_canonical((name, vm.host, vm.cpu_milli, vm.memory_bytes)).decode()
        answer = self._known.get(kind)
        if answer is None:
            if len(self._known) >= ANSWERS_KEPT:
                self._known.clear()
            answer = self._known[kind] = answer_of(self._engine, self._caller, vm, size)
        return answer


def state_of(gathered: Snapshot, *, now: float = 0.0) -> ExplainedFleet:
    """The state that explanations quote."""
    observation, settings = gathered.observation, gathered.settings
    excess = ((name, gathered.fleet.overbooked_amounts(name)) for name in gathered.fleet.names)
    capacity = {
        host.name: (amounts.get("cpu", 0), amounts.get("memory", 0))
        for host in observation.hypervisors
        if (amounts := host.effective_capacity()) is not None
    }
    return ExplainedFleet(
        vms=observation.vms,
        required=gathered.required,
        slots=observation.slots,
        sizes=gathered.sizes,
        hosts=observation.hosts,
        free=free_capacity(gathered.fleet),
        overbooked={name: (over.get("cpu", 0), over.get("memory", 0)) for name, over in excess if over},
        capacity=capacity,
        topology=gathered.topology,
        limit=settings.failover.max_vms_to_process,
        priorities=gathered.priorities,
        now=now,
        brake_share=settings.upkeep.brake_share,
        brake_number=settings.upkeep.brake_number,
    )


def explainer_of(gathered: Snapshot, *, now: float = 0.0) -> Explainer:
    """Explains VMs of what was gathered."""
    return Explainer(state_of(gathered, now=now), EngineAnswers(gathered))
