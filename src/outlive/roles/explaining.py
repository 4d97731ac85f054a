"""Gathers what an explanation needs: the state as plans see it, and placement's answers, asked for as they are needed.

The answer is of one moment: everything is read first, and the engine that is asked knows nothing that came later.
"""

from __future__ import annotations

from outlive.failover.analysis.explain.model import Answer, Answers, ExplainInput, State
from outlive.failover.analysis.explain.placement import answer_of
from outlive.failover.analysis.explain.vm import Explainer
from outlive.failover.keeping.calls import Caller, pins_projects, placement_class
from outlive.failover.keeping.placing import free_capacity
from outlive.failover.model import VmView
from outlive.failover.sizing import ResolvedSize
from outlive.resources.codec import encode_canonical
from outlive.roles.planning import Gathered

ANSWERS_KEPT = 256
"""Answers of placement that are remembered; beyond it all are forgotten and asked for again."""


class EngineAnswers(Answers):
    """Asks the engine over what was gathered, once for each kind of VM."""

    def __init__(self, gathered: Gathered) -> None:
        self._engine = gathered.engine
        self._caller = Caller(profile=gathered.settings.upkeep.profile)
        self._with_project = pins_projects(gathered.observation.hypervisors)
        self._known: dict[str, Answer] = {}

    def of(self, vm: VmView, size: ResolvedSize) -> Answer:
        """What placement says."""
        kind = encode_canonical(
            (placement_class(vm, size, with_project=self._with_project), vm.host, vm.cpu_milli, vm.memory_bytes)
        ).decode()
        answer = self._known.get(kind)
        if answer is None:
            if len(self._known) >= ANSWERS_KEPT:
                self._known.clear()
            answer = self._known[kind] = answer_of(self._engine, self._caller, vm, size)
        return answer


def state_of(gathered: Gathered, *, now: float = 0.0) -> State:
    """The state that explanations quote."""
    observation, settings = gathered.observation, gathered.settings
    capacity = {
        host.name: (amounts.get("cpu", 0), amounts.get("memory", 0))
        for host in observation.hypervisors
        if (amounts := host.effective_capacity()) is not None
    }
    return State(
        vms=observation.vms,
        required=gathered.required,
        slots=observation.slots,
        sizes=gathered.sizes,
        hosts=observation.hosts,
        free=free_capacity(gathered.fleet),
        capacity=capacity,
        topology=gathered.topology,
        limit=settings.failover.max_vms_to_process,
        priorities=gathered.priorities,
        now=now,
        brake_share=settings.upkeep.brake_share,
        brake_number=settings.upkeep.brake_number,
    )


def explainer_of(gathered: Gathered, *, now: float = 0.0) -> Explainer:
    """Explains VMs of what was gathered."""
    return Explainer(state_of(gathered, now=now), EngineAnswers(gathered))


def explain_input(gathered: Gathered, vm: str, *, now: float = 0.0) -> ExplainInput:
    """The same about one VM as plain data, for ``outlive decide failover.explain``; ``KeyError`` for another name."""
    state = state_of(gathered, now=now)
    view = {one.id: one for one in state.vms}[vm]
    answer = EngineAnswers(gathered).of(view, gathered.sizes[vm])
    fields = {name: getattr(state, name) for name in State.__struct_fields__}
    return ExplainInput(vm=vm, answers={"": answer}, **fields)
