"""What coverage means: the example of seven hosts after two failures, and what sharing costs with one slot or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.support.pictures.canvas import Area, Drawing

HOSTS: Final = 7


class Slot(NamedTuple):
    """A reserved place."""

    name: str
    host: int
    members: tuple[int, ...]
    """VMs by number; VM *i* runs on host *i*."""


TWO: Final = tuple(Slot(f"s{i}", (i + 2) % HOSTS + 1, (i, i % HOSTS + 1)) for i in range(1, HOSTS + 1))
"""The example of docs/concepts/coverage.md: each VM has two slots."""
ONE: Final = (Slot("s1", 7, (1, 2, 3, 4, 5, 6)), Slot("s2", 1, (7,)))
"""The same seven VMs with one slot each."""
COLUMN, LEFT, CARD = 130, 24, 118


def places(slots: Sequence[Slot], failed: Sequence[int]) -> dict[int, list[Slot]]:
    """For each VM whose host failed, its slots on living hosts that no other such VM needs."""
    return {
        vm: [one for one in slots if one.host not in failed and set(one.members) & set(failed) == {vm}] for vm in failed
    }


def _names(members: Sequence[int]) -> str:
    return f"v{members[0]} … v{members[-1]}" if len(members) > 2 else ", ".join(f"v{one}" for one in members)


def _host(
    d: Drawing, host: int, top: float, slots: Sequence[Slot], lost: Sequence[Slot] = (), *, height: float
) -> Area:
    x = LEFT + (host - 1) * COLUMN
    card = Area(x, top, CARD, height)
    d.rect(card)
    d.text(x + CARD / 2, top + 22, f"h{host}", bold=True, anchor="middle")
    d.box(Area(x + 12, top + 34, CARD - 24, 30), [f"VM v{host}"], colour="green", size=12)
    for at, slot in enumerate(one for one in slots if one.host == host):
        area = Area(x + 12, top + 78 + at * 56, CARD - 24, 46)
        d.box(
            area,
            [f"slot {slot.name}", f"for {_names(slot.members)}"],
            size=12,
            colour="grey" if slot in lost else "blue",
            dashed=True,
        )
    return card


def failures() -> Drawing:
    """Seven hosts, two of which fail."""
    failed = (1, 2)
    chosen = {vm: found[0] for vm, found in places(TWO, failed).items()}
    d = Drawing("Seven hosts, two slots for each VM: h1 and h2 fail", 950, 330)
    d.text(
        16,
        52,
        "Seven slots are enough: two VMs share each. A slot that v1 and v2 share is grey.",
        size=12,
        colour="muted",
    )
    top = 70
    for host in range(1, HOSTS + 1):
        contested = [one for one in TWO if set(failed) <= set(one.members)]
        card = _host(d, host, top, TWO, contested, height=140)
        if host in failed:
            d.cross(card)
    for at, (vm, slot) in enumerate(chosen.items()):
        start, end, y = _middle(vm), _middle(slot.host), top + 168 + at * 36
        d.arrow((start, top + 140), (start, y), (end, y), (end, top + 140), colour="green", width=2)
        said = f"v{vm} restarts in {slot.name} on h{slot.host}"
        d.text(end + 12, y - 4, said, size=12, colour="green")
    d.text(
        16,
        312,
        "Both v1 and v2 are members of s1, so neither relies on it. Every pair of hosts ends like this.",
        size=12,
        colour="muted",
    )
    return d


def _middle(host: int) -> float:
    return LEFT + (host - 1) * COLUMN + CARD / 2


def sharing() -> Drawing:
    """The price of one slot for each VM, and of two."""
    d = Drawing("How many slots seven VMs need: one slot each, or two", 950, 460)
    d.text(
        16,
        62,
        "One slot for each VM: any one host may fail. A slot has one VM from every other host.",
        size=13,
        bold=True,
    )
    for host in range(1, HOSTS + 1):
        _host(d, host, 76, ONE, height=140)
    d.text(16, 240, f"{len(ONE)} slots", size=13, colour="blue", bold=True)
    d.text(
        16, 276, "Two slots for each VM: any two hosts may fail. Two VMs share at most one slot.", size=13, bold=True
    )
    for host in range(1, HOSTS + 1):
        _host(d, host, 290, TWO, height=140)
    d.text(16, 450, f"{len(TWO)} slots; without sharing {2 * HOSTS}", size=13, colour="blue", bold=True)
    return d
