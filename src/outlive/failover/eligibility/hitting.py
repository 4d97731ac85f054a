"""The least hitting set: as few elements as possible so that every given set contains one of them."""

from __future__ import annotations

from collections.abc import Sequence


def least_hitting_set(sets: Sequence[int], elements: int) -> tuple[int, ...]:
    """Numbers below ``elements``, ascending, that hit all ``sets`` (bit masks, none of them 0).

    Of all smallest answers the first in lexicographic order. Takes time exponential in ``elements``: meant for up to
    about 20. Raises ``ValueError`` for an empty set, which nothing can hit.
    """
    if any(one == 0 for one in sets):
        raise ValueError("an empty set cannot be hit")
    minimal = [one for one in sets if not any(other != one and other & one == other for other in sets)]
    for size in range(_disjoint(minimal), elements + 1):
        answer = _search(minimal, 0, size)
        if answer is not None:
            return answer
    raise AssertionError("all elements together hit every set")


def _search(sets: list[int], element: int, budget: int) -> tuple[int, ...] | None:
    """The lexicographically first answer of at most ``budget`` elements, none below ``element``."""
    if not sets:
        return ()
    if budget < _disjoint(sets):
        return None
    bit = 1 << element
    if any(one & bit for one in sets):
        taken = _search([one for one in sets if not one & bit], element + 1, budget - 1)
        if taken is not None:
            return (element, *taken)
        sets = [one & ~bit for one in sets]
        if any(one == 0 for one in sets):
            return None
    return _search(sets, element + 1, budget)


def _disjoint(sets: list[int]) -> int:
    """How many sets that have nothing in common are found quickly: no answer is smaller."""
    used = count = 0
    for one in sorted(sets, key=int.bit_count):
        if not one & used:
            used |= one
            count += 1
    return count
