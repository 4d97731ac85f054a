"""Breadth-first search over all states of a world, so that the first violation found has a shortest history.

Every part of a state is interned: a state is a tuple of small numbers, and what an action does is remembered for the
parts that it looks at. Fencers are alike, so states that differ by their names are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import msgspec

from tests.model import attestation, fencing, machines, membership, migration, recovery, vm_worker
from tests.model.invariants import judge
from tests.model.rules import Rules
from tests.model.state import (
    A_DAEMON,
    A_HOST,
    A_MEMBER,
    B_HOST,
    B_MEMBER,
    DAEMON,
    FENCER,
    FENCER_1,
    FENCER_2,
    FENCERS,
    HOST,
    MEMBER,
    NET,
    OUTSIDE,
    RECOVERY,
    THE_SLOT,
    THE_VM,
    replace,
)
from tests.model.worlds import World, first_state

Codes = tuple[int, ...]
SEES = (A_MEMBER, B_MEMBER, THE_VM, A_HOST, B_HOST)
"""What the judge looks at."""


@dataclass(frozen=True)
class Action:
    """One kind of thing that may happen: what it looks at, and what it changes."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    run: Callable[..., Iterator[membership.Found]]


def actions(rules: Rules, world: World) -> list[Action]:
    """All that may happen in a world."""
    found: list[Action] = []

    def add(function: Callable[..., Any], reads: tuple[int, ...], writes: tuple[int, ...], *first: Any) -> None:
        def run(*parts: Any) -> Iterator[membership.Found]:
            return function(rules, world, *first, *parts)

        found.append(Action(f"{function.__module__.rsplit('.')[-1]}.{function.__name__}", reads, writes, run))

    for n in (0, 1):
        member, host, daemon = MEMBER[n], HOST[n], DAEMON[n]
        add(machines.lands, (host,), (host,), n)
        add(machines.happens_to_host, (host, OUTSIDE), (host, OUTSIDE), n)
        if n == 1 and not world.second_daemon:
            continue
        add(membership.start, (daemon, host, NET), (daemon, host, NET), n)
        add(membership.look, (daemon, host, member), (daemon,), n)
        add(membership.join, (daemon, host, OUTSIDE), (daemon, host), n)
        add(membership.renew, (daemon, host), (daemon,), n)
        add(membership.self_clean, (daemon, host, member), (daemon,), n)
        add(membership.leave, (daemon, host, THE_VM, OUTSIDE), (daemon,), n)
        if "disarm" in world.kinds:
            add(machines.disarm, (daemon, host, OUTSIDE), (daemon, host, OUTSIDE), n)
        add(membership.answered, (daemon, host), (daemon, host), n)
        add(membership.unsure, (daemon, host, member), (daemon, host), n)
        everything = (daemon, host, THE_VM, A_MEMBER, B_MEMBER)
        add(vm_worker.hold, (*everything, OUTSIDE), (daemon, host), n)
        add(vm_worker.heard, (daemon, host), (daemon, host), n)
        add(vm_worker.wondering, (daemon, host, THE_VM), (daemon,), n)
        add(vm_worker.create, (daemon, host, OUTSIDE), (daemon, host), n)
        add(vm_worker.release, (daemon, host, THE_VM), (daemon,), n)
        add(vm_worker.rehold, (*everything, OUTSIDE), (daemon, host), n)
        add(vm_worker.destroy, (daemon, host, THE_VM, OUTSIDE), (host,), n)
        if "restore" in world.kinds or world.start == "unknown":
            add(vm_worker.register, (daemon, host, THE_VM, OUTSIDE), (daemon, host), n)
            add(vm_worker.report, (daemon, host, THE_VM, OUTSIDE), (OUTSIDE,), n)
        if world.moves:
            add(migration.enter, (*everything, OUTSIDE), (daemon, host), n)
            add(migration.read, (daemon, host, THE_VM), (daemon,), n)
            add(migration.send, (*everything, OUTSIDE), (daemon, host), n)
            add(migration.adopt, everything, (daemon,), n)
            add(migration.decline, (daemon, host), (daemon, host), n)
            add(migration.resume, everything, (host,), n)
        for field_, slot in (("write", member), ("vm_write", THE_VM)):
            found.append(_arrival(rules, world, daemon, slot, field_))
        add(recovery.loses, (daemon, NET, OUTSIDE), (daemon, NET, OUTSIDE))
        add(machines.crash, (daemon, OUTSIDE), (daemon, OUTSIDE), n)
    if world.moves:
        pair = (HOST[world.source], HOST[1 - world.source], OUTSIDE)
        add(machines.transfers, pair, pair)
    for f in range(world.fencers):
        fencer = FENCER[f]
        add(fencing.look, (fencer, A_MEMBER), (fencer,), f)
        add(fencing.condemn, (fencer,), (fencer,), f)
        add(fencing.carry_on, (fencer,), (fencer,), f)
        add(fencing.answered, (fencer,), (fencer,), f)
        add(fencing.gives_up, (fencer, NET, OUTSIDE), (fencer, NET, OUTSIDE), f)
        if "power" in world.proofs:
            four = (fencer, A_HOST, B_HOST, OUTSIDE)
            add(fencing.off, four, four, f)
            add(fencing.reads_power, four, (fencer, OUTSIDE), f)
        add(fencing.proves, (fencer, A_MEMBER, B_MEMBER, OUTSIDE), (fencer,), f)
        if "cut" in world.proofs:
            add(fencing.cuts, (fencer, A_HOST, OUTSIDE), (fencer, A_HOST, OUTSIDE), f)
            add(fencing.announces, (fencer, A_MEMBER, B_MEMBER, OUTSIDE), (fencer,), f)
            add(fencing.lifts, (fencer, A_HOST, A_MEMBER, B_MEMBER, OUTSIDE), (fencer, A_HOST), f)
        found.append(_arrival(rules, world, fencer, A_MEMBER, "write"))
    if "operator" in world.proofs:
        add(fencing.asserts, (A_MEMBER, A_HOST, OUTSIDE), (OUTSIDE,))
        add(fencing.unplugs, (A_HOST, OUTSIDE), (A_HOST, OUTSIDE))
    if world.attested:
        add(attestation.attests, (A_MEMBER, THE_VM, A_HOST, OUTSIDE, NET), (OUTSIDE, NET))
        add(fencing.unplugs, (A_HOST, OUTSIDE), (A_HOST, OUTSIDE))
    if world.recovery:
        look = (RECOVERY, THE_VM, THE_SLOT, A_MEMBER, B_MEMBER, OUTSIDE)
        add(recovery.look, look, (RECOVERY,))
        add(recovery.claim, (RECOVERY,), (RECOVERY,))
        add(recovery.assign, (RECOVERY,), (RECOVERY,))
        add(recovery.drop, (RECOVERY,), (RECOVERY,))
        if "delete" in world.kinds:
            add(recovery.remove, (RECOVERY, THE_VM, A_MEMBER, B_MEMBER, A_HOST, B_HOST, OUTSIDE), (RECOVERY,))
        add(recovery.heard, (RECOVERY,), (RECOVERY,))
        add(recovery.gives_up, (RECOVERY, NET, OUTSIDE), (RECOVERY, NET, OUTSIDE))
        found.append(_arrival(rules, world, RECOVERY, THE_VM, "write"))
        found.append(_arrival(rules, world, RECOVERY, THE_SLOT, "write"))
    late = (NET, A_MEMBER, B_MEMBER, THE_VM, THE_SLOT)
    add(recovery.orphan_arrives, late, late)
    add(machines.users, (THE_VM, THE_SLOT, OUTSIDE), (THE_VM, THE_SLOT, OUTSIDE))
    add(machines.intruder, (A_MEMBER, OUTSIDE), (A_MEMBER, OUTSIDE), 0)
    add(machines.other_fencer, (A_MEMBER, OUTSIDE), (A_MEMBER, OUTSIDE), 0)
    add(machines.other_fencer, (B_MEMBER, OUTSIDE), (B_MEMBER, OUTSIDE), 1)
    if "restore" in world.kinds or "forget" in world.kinds:
        store = (A_MEMBER, B_MEMBER, THE_VM, THE_SLOT, OUTSIDE)
        add(machines.forget, store, store)
    return found


def _arrival(rules: Rules, world: World, process: int, slot: int, name: str) -> Action:
    def run(holder: Any, doc: Any) -> Iterator[membership.Found]:
        return recovery.arrives(rules, world, holder, doc, name, slot)

    return Action(f"arrives.{name}", (process, slot), (process, slot), run)


@dataclass
class Result:
    """What a search found."""

    states: int
    depth: int
    complete: bool
    """Whether everything was seen."""
    violation: str = ""
    history: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Sentences, each with the state after it; the first is the beginning."""


class Space:
    """The states of one world under one set of rules."""

    def __init__(self, rules: Rules, world: World) -> None:
        self.rules, self.world = rules, world
        self._codes: list[dict[Any, int]] = [{} for _ in range(13)]
        self._parts: list[list[Any]] = [[] for _ in range(13)]
        self._actions = [(one, itemgetter(*one.reads), len(one.reads) == 1, {}) for one in actions(rules, world)]
        self._sees = itemgetter(*SEES)
        self._judged: dict[Codes, str] = {}
        self._ticks: list[dict[int, int]] = [{} for _ in range(13)]
        self._swaps: list[dict[int, int]] = [{} for _ in range(13)]

    def first(self) -> Codes:
        """Where the search begins."""
        return self._same(tuple(self._code(slot, part) for slot, part in enumerate(first_state(self.world))))

    def parts(self, state: Codes) -> tuple[Any, ...]:
        """A state as plain values."""
        return tuple(self._parts[slot][code] for slot, code in enumerate(state))

    def _code(self, slot: int, part: Any) -> int:
        codes = self._codes[slot]
        code = codes.get(part)
        if code is None:
            code = codes[part] = len(codes)
            self._parts[slot].append(part)
        return code

    def after(self, state: Codes) -> Iterator[tuple[str, str, Codes]]:
        """All that may follow: sentence, violation, state."""
        for action, key_of, alone, memory in self._actions:
            key = key_of(state)
            found = memory.get(key)
            if found is None:
                found = memory[key] = self._happen(action, (key,) if alone else key)
            for said, note, changes in found:
                if not changes:
                    yield said, note, state
                    continue
                new = list(state)
                for slot, code in changes:
                    new[slot] = code
                yield said, note, self._same(tuple(new))
        if self._parts[OUTSIDE][state[OUTSIDE]].ticks:
            yield (
                "Time passes: one tick",
                "",
                self._same(tuple(self._older(slot, code) for slot, code in enumerate(state))),
            )

    def _happen(self, action: Action, key: tuple[int, ...]) -> tuple[tuple[str, str, tuple[tuple[int, int], ...]], ...]:
        parts = [self._parts[slot][code] for slot, code in zip(action.reads, key, strict=True)]
        found = []
        for said, note, changed in action.run(*parts):
            changes = tuple(
                (slot, self._code(slot, part)) for slot, part in zip(action.writes, changed, strict=bool(changed))
            )
            found.append((said, note, changes))
        return tuple(found)

    def _older(self, slot: int, code: int) -> int:
        known = self._ticks[slot].get(code)
        if known is None:
            part, world = self._parts[slot][code], self.world
            if slot in (A_MEMBER, B_MEMBER):
                part = machines.doc_tick(world, part)
            elif slot in (A_HOST, B_HOST):
                part = machines.host_tick(self.rules, world, part)
            elif slot in (A_DAEMON, A_DAEMON + 1):
                part = machines.daemon_tick(world, part)
            elif slot in (FENCER_1, FENCER_2):
                part = machines.fencer_tick(world, part)
            elif slot == OUTSIDE:
                part = replace(part, ticks=part.ticks - 1)
            known = self._ticks[slot][code] = self._code(slot, part)
        return known

    def _same(self, state: Codes) -> Codes:
        """The one of the two states that differ only by the fencers' names."""
        if self.world.fencers < 2:
            return state
        other = [self._swapped(slot, code) for slot, code in enumerate(state)]
        other[FENCER_1], other[FENCER_2] = other[FENCER_2], other[FENCER_1]
        return min(state, tuple(other))

    def _swapped(self, slot: int, code: int) -> int:
        known = self._swaps[slot].get(code)
        if known is None:
            target = {FENCER_1: FENCER_2, FENCER_2: FENCER_1}.get(slot, slot)
            known = self._code(target, _renamed(self._parts[slot][code]))
            self._swaps[slot][code] = known
        return known

    def violation(self, state: Codes) -> str:
        """What is wrong in a state."""
        key = self._sees(state)
        found = self._judged.get(key)
        if found is None:
            parts = [self._parts[slot][code] for slot, code in zip(SEES, key, strict=True)]
            found = self._judged[key] = judge(self.world.judges, *parts)
        return found

    def search(
        self, *, states: int = 5_000_000, depth: int = 200, tell: Callable[[int, int, int], None] | None = None
    ) -> Result:
        """Everything up to that many states, nearest first."""
        first = self.first()
        parents: dict[Codes, tuple[Codes, str] | None] = {first: None}
        frontier, level = [first], 0
        after, violation, judges = self.after, self.violation, self.world.judges
        while frontier and level < depth:
            level += 1
            following: list[Codes] = []
            for state in frontier:
                for said, note, new in after(state):
                    if note and note.split(":")[0] in judges:
                        return Result(len(parents), level, False, note, self._history(parents, state, (said, new)))
                    if new in parents:
                        continue
                    parents[new] = (state, said)
                    following.append(new)
                    if wrong := violation(new):
                        return Result(len(parents), level, False, wrong, self._history(parents, state, (said, new)))
                if len(parents) > states:
                    return Result(len(parents), level, False)
            if tell is not None:
                tell(level, len(parents), len(following))
            frontier = following
        return Result(len(parents), level, not frontier)

    def _history(
        self, parents: dict[Codes, tuple[Codes, str] | None], state: Codes, last: tuple[str, Codes]
    ) -> list[tuple[str, tuple[Any, ...]]]:
        found = [(last[0], self.parts(last[1]))]
        step: tuple[Codes, str] | None
        while (step := parents[state]) is not None:
            found.append((step[1], self.parts(state)))
            state = step[0]
        found.append(("", self.parts(state)))
        return found[::-1]


_NAMES = {FENCERS[0]: FENCERS[1], FENCERS[1]: FENCERS[0]}


def _renamed(part: Any) -> Any:
    """The same with the fencers' names exchanged."""
    if isinstance(part, str):
        return _NAMES.get(part, part)
    if isinstance(part, tuple):
        return tuple(_renamed(one) for one in part)
    if isinstance(part, msgspec.Struct):
        changed = {}
        for name in part.__struct_fields__:
            before = getattr(part, name)
            if isinstance(before, str | tuple | msgspec.Struct):
                after = _renamed(before)
                if after != before:
                    changed[name] = after
        return replace(part, **changed) if changed else part
    return part
