"""Why is this VM not covered, and what would help: one VM (docs/reference/failover-analysis.md#explanations).

``Explainer`` keeps what is the same for all VMs of a state, so that each answer after the first costs milliseconds;
``explain`` is the same as a pure function of plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from outlive.base import NotFound, collector_paused, count_of, join_parts
from outlive.failover.analysis.coverage import allocation_fault
from outlive.failover.analysis.explain.model import (
    AnswerSource,
    CoverageExplanation,
    ExplainedFleet,
    ExplainInput,
    PlacementAnswer,
    ReasonTally,
    SlotPromise,
)
from outlive.failover.analysis.explain.obstacles import Against, NamedSlotIndex
from outlive.failover.analysis.explain.search import RemedySearch
from outlive.failover.analysis.explain.trials import Model, done_of
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail
from outlive.failover.rules import slot_counts
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, format_amounts, resolve_size
from outlive.placement import VmView
from outlive.resources.reasons import CoverageReason, Obstacle, render

CO_USERS_NAMED = 3
"""Other members of a slot that are named."""


class GivenAnswers(AnswerSource):
    """Answers that are given as data."""

    def __init__(self, answers: Mapping[str, PlacementAnswer], classes: Mapping[str, str]) -> None:
        self._answers = answers
        self._classes = classes

    def find_answer(self, vm: VmView, size: ResolvedSize) -> PlacementAnswer | None:
        """The answer for the VM's class; a VM that is given a size has none."""
        answer = self._answers.get(self._classes.get(vm.id, ""))
        if answer is None or (answer.need[0] and answer.need[0] < size.cpu_milli):
            return None
        return answer


class Explainer:
    """Explains VMs of one state."""

    def __init__(self, state: ExplainedFleet, answers: AnswerSource) -> None:
        self.state = state
        self.answers = answers
        with collector_paused():
            self.ground = NamedSlotIndex(state, state.slots)

    @cached_property
    def model(self) -> Model:
        """What trials are made on."""
        with collector_paused():
            return Model(self.state, self.ground)

    def explain(self, vm: str, *, shown: int | None = None) -> CoverageExplanation:
        """The answer; ``NotFound`` for a VM that is not in the state.

        All hosts and slots are named; or only ``shown`` of each, those that come closest first.
        """
        view = self.ground.views.get(vm)
        if view is None:
            raise NotFound(
                f"there is no VM {vm!r} that runs on a host", remedy="see outlive get virtualmachines for names"
            )
        with collector_paused():
            return self._explain_view(view, shown)

    def _explain_view(self, view: VmView, shown: int | None) -> CoverageExplanation:
        vm = view.id
        required = self.state.required.get(vm, 0)
        promises = tuple(self._build_promise(view, self.ground.slots[name]) for name in self.ground.slots_of(view))
        present = sum(one.counts for one in promises)
        if self.ground.is_covered(view):
            return self._explain_covered(view, required, promises)
        against = self.find_obstacles(view)
        if against is None:
            raise NotFound(f"what placement says about VM {vm!r} is not given", remedy="give it in answers")
        host_tallies, slot_tallies = against.host_tallies(), against.slot_tallies()
        search = RemedySearch(against, self.model, self.answers)
        reason = CoverageReason.MEMBERSHIPS_CLASH.value
        if against.whole is not Obstacle.OWN_CLASH:
            failed = next((action for action in search.now if isinstance(action, Fail)), None)
            reason = CoverageReason.WAITING.value if failed is None else failed.reason
        return CoverageExplanation(
            vm=vm,
            host=view.host,
            zone=view.zone,
            covered=False,
            required=required,
            present=present,
            reason=reason,
            text=self._render_text(view, against, required, present),
            summary=_summarise(against, host_tallies, slot_tallies, search.now),
            remedy=(found := search.find_cheapest()),
            otherwise=search.find_alternative(found),
            promises=promises,
            host_tallies=host_tallies,
            slot_tallies=slot_tallies,
            hosts=tuple(against.host_reason(number) for number in against.hosts.pick_closest(shown)),
            slots=tuple(against.slot_reason(number) for number in against.slots.pick_closest(shown)),
        )

    def find_obstacles(self, vm: VmView) -> Against | None:
        """The obstacles to a VM's slots; ``None`` where placement's answer is not known."""
        size = enlarge_for_vm(vm, self.state.sizes.get(vm.id) or resolve_size(vm))
        answer = self.answers.find_answer(vm, size)
        return None if answer is None else Against(self.state, self.ground, vm, size, answer)

    def _build_promise(self, vm: VmView, slot: SlotView) -> SlotPromise:
        worth = slot_counts(vm, slot)
        why = None if worth else allocation_fault(vm, slot)
        if why is not None:
            text = f"does not count: it {render(why).text}"
        else:
            others = sorted(member for member in slot.members if member != vm.id)
            shown = ", ".join(f"{one} on {self.ground.index.location_of(one)}" for one in others[:CO_USERS_NAMED])
            more = f" and {len(others) - CO_USERS_NAMED} more" if len(others) > CO_USERS_NAMED else ""
            shared = f", shared with {shown}{more}" if others else ", for it alone"
            text = f"{format_amounts(slot.cpu_milli, slot.memory_bytes)} on {slot.host}{shared}"
        return SlotPromise(slot=slot.name, host=slot.host, counts=worth, text=text)

    def _explain_covered(self, vm: VmView, required: int, promises: tuple[SlotPromise, ...]) -> CoverageExplanation:
        present = sum(one.counts for one in promises)
        if required <= 0:
            why = f" ({vm.unprotected_why})" if vm.unprotected_why else ""
            out = f": it was taken out of protection{why}" if vm.unprotected else ""
            text = f"{vm.id} needs no slots{out}"
        else:
            unit = "host" if not self.state.topology.units else "unit of failure"
            failures = f"the failure of any {unit if required == 1 else count_of(required, unit)}"
            text = f"{vm.id} is covered: {present} of {count_of(required, 'slot')}, so that it survives {failures}"
        return CoverageExplanation(
            vm=vm.id,
            host=vm.host,
            zone=vm.zone,
            covered=True,
            required=required,
            present=present,
            text=text,
            promises=promises,
        )

    def _render_text(self, vm: VmView, against: Against, required: int, present: int) -> str:
        zone = f" in zone {vm.zone}" if vm.zone else ""
        size = against.size
        needs = format_amounts(size.cpu_milli, size.memory_bytes)
        text = f"{vm.id} is not covered: {present} of {count_of(required, 'slot')}; "
        text += f"it runs on {vm.host}{zone} and a slot for it holds {needs}"
        if against.whole is Obstacle.OWN_CLASH:
            text += f"; a rule is broken for it: {self.ground.index.find_breaches(vm.id)[0].describe()}"
        return text


def explain(given: ExplainInput) -> CoverageExplanation:
    """The answer for one VM; ``NotFound`` where the VM, or what placement says about it, is not given."""
    return Explainer(given, GivenAnswers(given.answers, given.classes)).explain(given.vm)


def _summarise(
    against: Against, hosts: tuple[ReasonTally, ...], slots: tuple[ReasonTally, ...], actions: Sequence[Action]
) -> tuple[str, ...]:
    lines = []
    if hosts:
        text = f"of {count_of(sum(one.count for one in hosts), 'host')} {_render_tallies(hosts)}"
        best = against.find_roomiest()
        if best is not None and all(one.reason != Obstacle.NOTHING for one in hosts):
            free = format_amounts(max(0, best[1][0]), max(0, best[1][1]))
            text += f"; the most room is on {best[0]} with {free}"
        lines.append(text)
    else:
        lines.append("there are no hosts")
    if slots:
        lines.append(f"of {count_of(sum(one.count for one in slots), 'slot')} {_render_tallies(slots)}")
    else:
        lines.append("there are no slots yet")
    done, failed = done_of(actions), next((one for one in actions if isinstance(one, Fail)), None)
    if done and failed is not None:
        lines.append(f"{count_of(done, 'slot')} could be given now, {failed.missing} could not beside that")
    return tuple(lines)


def _render_tallies(tallies: tuple[ReasonTally, ...]) -> str:
    """The number and the words of each, in the singular if it is one."""
    texts = []
    for tally in tallies:
        text = tally.text
        if tally.count == 1:
            head, _, rest = text.partition(" ")
            singular = {"are": "is", "have": "has", "run": "runs", "lack": "lacks", "take": "takes"}.get(head, head)
            text = f"{singular} {rest}".strip()
        texts.append(f"{tally.count:,} {text}")
    return join_parts(texts)
