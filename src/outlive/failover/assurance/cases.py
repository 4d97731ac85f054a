"""One case of failure: which VMs are affected, where each of them lands, and who has no slot of its own.

A VM that survives takes a slot of its own, the first by name: nobody else who is affected may claim it, so no order and
no matching is needed (docs/reference/failover.md#surviving). The rest share what is left of their slots by restart
priority. Such a landing is *contested*: it was not promised, and the VM is told as lost.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from outlive.failover.assurance.matching import matched
from outlive.failover.assurance.standing import Standing


class LostReason(enum.StrEnum):
    """Why a VM has no slot of its own in a case."""

    NO_SLOT = "no-slot"
    """No slot counts for it, whatever fails."""
    SLOTS_FAILED = "slots-failed"
    """All its slots are on what failed."""
    CONTESTED = "contested"
    """Its living slots belong to other affected VMs as well."""


class Landing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where an affected VM is brought up again."""

    vm: str
    source: str = msgspec.field(name="from")
    """The host that failed under it."""
    slot: str
    host: str
    contested: bool = False
    """Somebody else who is affected has a claim to the slot too and goes elsewhere, or without."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM without a slot of its own in a case."""

    vm: str
    case: tuple[str, ...]
    """What failed."""
    host: str
    reason: LostReason
    required: int
    """Slots that it needs: as many failures as it was promised to survive."""
    takes: str = ""
    """The contested slot that restart priority leaves it; empty if there is none."""
    rivals: tuple[str, ...] = ()
    """Affected VMs that have a claim to its living slots, the first few by name."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one case does. Both lists by VM."""

    landing: tuple[Landing, ...]
    lost: tuple[Lost, ...]


RIVALS_NAMED = 5
"""Rivals that are named for a VM whose slots are contested."""


class Cases:
    """Answers about cases, one after the other; what concerns a slot is prepared when it is first asked for."""

    def __init__(self, standing: Standing, required: Mapping[str, int], priorities: Mapping[str, int]) -> None:
        self._standing = standing
        self._required = required
        self._priorities = priorities
        self._on: dict[int, list[int]] = {}
        for at, unit in enumerate(standing.own.tolist()):
            self._on.setdefault(unit, []).append(at)
        self._touched: dict[int, frozenset[int]] = {}
        # Lists, because a case asks for a few numbers at a time.
        self._slot_of: list[int] = standing.claim_slot.tolist()
        self._alone: list[bool] = standing.alone.tolist()
        self._first: list[int] = [*standing.first.tolist(), len(self._slot_of)]

    def affected(self, down: Iterable[int]) -> list[int]:
        """Numbers of the VMs on these units."""
        return [at for unit in sorted(set(down)) for at in self._on.get(unit, ())]

    def result(self, down: frozenset[int], case: tuple[str, ...]) -> CaseResult:
        """Who lands where when exactly these units fail; ``case`` is how they are called."""
        landing: list[Landing] = []
        left: list[int] = []
        for unit in sorted(down):
            others = down - {unit}
            for at in self._on.get(unit, ()):
                own = self._own_slot(at, others)
                if own is None:
                    left.append(at)
                else:
                    landing.append(self._landing(at, own, contested=False))
        left.sort(key=self._importance)
        living = [self._living(at, down) for at in left]
        lost = []
        for at, slots, taken in zip(left, living, matched(living), strict=True):
            landed = None if taken is None else self._landing(at, taken, contested=True)
            if landed is not None:
                landing.append(landed)
            lost.append(self._lost(at, slots, landed, case, down))
        return CaseResult(
            landing=tuple(sorted(landing, key=lambda one: one.vm)), lost=tuple(sorted(lost, key=lambda one: one.vm))
        )

    def _importance(self, at: int) -> tuple[int, int, str]:
        """Who chooses first among contested slots."""
        vm = self._standing.vms[at]
        return (-self._priorities.get(vm.id, 0), -vm.memory_bytes, vm.id)

    def _own_slot(self, at: int, others: frozenset[int]) -> int | None:
        """The first slot that no failed unit but the VM's own touches, and that one only because of the VM."""
        for claim in range(self._first[at], self._first[at + 1]):
            slot = self._slot_of[claim]
            if self._alone[claim] and self._touches(slot).isdisjoint(others):
                return slot
        return None

    def _touches(self, slot: int) -> frozenset[int]:
        known = self._touched.get(slot)
        if known is None:
            standing = self._standing
            begin, end = standing.touched_from[slot : slot + 2].tolist()
            known = self._touched[slot] = frozenset(standing.touched[begin:end].tolist())
        return known

    def _living(self, at: int, down: frozenset[int]) -> list[int]:
        slots = self._slot_of[self._first[at] : self._first[at + 1]]
        return [slot for slot in slots if int(self._standing.slot_unit[slot]) not in down]

    def _landing(self, at: int, slot: int, *, contested: bool) -> Landing:
        vm, view = self._standing.vms[at], self._standing.slots[slot]
        return Landing(vm=vm.id, source=vm.host, slot=view.name, host=view.host, contested=contested)

    def _lost(
        self, at: int, living: list[int], landed: Landing | None, case: tuple[str, ...], down: frozenset[int]
    ) -> Lost:
        standing = self._standing
        vm = standing.vms[at]
        reason = LostReason.CONTESTED if living else LostReason.SLOTS_FAILED
        rivals = {name for slot in living for name in standing.members_down(slot, down)} - {vm.id}
        return Lost(
            vm=vm.id,
            case=case,
            host=vm.host,
            reason=reason if standing.degree[at] else LostReason.NO_SLOT,
            required=self._required.get(vm.id, 0),
            takes=landed.slot if landed is not None else "",
            rivals=tuple(sorted(rivals)[:RIVALS_NAMED]),
        )
