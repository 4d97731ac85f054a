"""Improve a plan within a budget: the same memberships for every VM, in slots that hold less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from outlive.base.random import Random
from outlive.failover.model import SlotView
from outlive.failover.planning.packing.anneal import Budget
from outlive.failover.planning.packing.board import Board
from outlive.failover.planning.packing.outcome import Outcome, outcome
from outlive.failover.planning.packing.problem import Ground, problem_of
from outlive.failover.planning.packing.search import Search

STEPS_A_SECOND: Final = 8_000
"""What a second of effort is worth. Nominal, so that a plan does not depend on how fast the machine is."""
SLOTS_SEARCHED: Final = 4_000
"""Plans of more slots are not searched: the tables grow with the square of it."""
TABLE_CELLS: Final = 60_000_000
"""… nor those with more points times slots."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What a search came to."""

    outcome: Outcome | None
    """``None`` where it found nothing."""
    cut_short: bool = False


def pack(
    before: Sequence[SlotView],
    found: Sequence[SlotView],
    ground: Ground,
    *,
    effort_s: float,
    seed: int,
    keep_going: Callable[[], bool],
    prefix: str = "new-",
) -> Packed:
    """Improve the plan that leads from ``before`` to ``found``, with so many nominal seconds of search.

    ``keep_going`` may end the search earlier; that is told, because then the answer depends on when it was asked.
    """
    if len(found) > SLOTS_SEARCHED or len(found) * len(ground.hosts) > TABLE_CELLS:
        return Packed(outcome=None)
    problem = problem_of(before, found, ground)
    if not problem.own.any():
        return Packed(outcome=None)
    board = Board(problem)
    if board.clashes:
        return Packed(outcome=None)
    budget = Budget(effort_s * STEPS_A_SECOND, keep_going)
    search = Search(board, Random(seed), budget)
    saved = search.run()
    return Packed(outcome=outcome(problem, saved, before, found, ground, prefix), cut_short=budget.cut_short)
