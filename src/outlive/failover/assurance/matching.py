"""Who takes which slot where several VMs claim the same ones: a maximum matching, the most important first.

Augmenting paths in the order given: whoever was served stays served (perhaps in another slot), so the VMs that get a
slot are the best by that order, and as many as any division of the slots serves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def matched(wanted: Sequence[Sequence[int]]) -> list[int | None]:
    """For each claimant, in order of importance, the slot that it takes out of those that it wants, or ``None``.

    Effort: a search that serves somebody looks at each claim once at most, one that fails takes its slots out of all
    later searches, because these cannot be freed for anybody.
    """
    holder: dict[int, int] = {}
    taken: list[int | None] = [None] * len(wanted)
    hopeless: set[int] = set()
    for claimant in range(len(wanted)):
        came_from: dict[int, int] = {}
        free = _search(claimant, wanted, holder, hopeless, came_from)
        if free is None:
            hopeless.update(came_from)
            continue
        slot: int | None = free
        while slot is not None:
            who = came_from[slot]
            holder[slot], taken[who], slot = who, slot, taken[who]
    return taken


def _search(
    claimant: int,
    wanted: Sequence[Sequence[int]],
    holder: dict[int, int],
    hopeless: set[int],
    came_from: dict[int, int],
) -> int | None:
    """A slot that becomes free for the claimant if others change theirs; ``came_from``: slot → who would take it."""
    waiting = deque([claimant])
    while waiting:
        who = waiting.popleft()
        for slot in wanted[who]:
            if slot in came_from or slot in hopeless:
                continue
            came_from[slot] = who
            if slot not in holder:
                return slot
            waiting.append(holder[slot])
    return None
