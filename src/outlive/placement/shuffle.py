"""The permutation of the first hosts of an evacuation, because Nova uses only the first one.

Hosts that hold a slot of the VM and hosts that do not are permuted among themselves, so that the VM never loses its
promised place to the permutation (docs/reference/placement.md#after-the-run).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outlive.base.random import Random


def shuffled(hosts: Sequence[str], own: Collection[str], *, first: int, random: Random) -> list[str]:
    """The hosts with the first few permuted: places of own hosts among themselves, the others likewise."""
    result = list(hosts)
    head = range(min(first, len(result)))
    for places in ([at for at in head if result[at] in own], [at for at in head if result[at] not in own]):
        names = [result[at] for at in places]
        random.shuffle(names)
        for at, name in zip(places, names, strict=True):
            result[at] = name
    return result
