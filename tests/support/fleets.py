"""Fleets as failover sees them, for its tests: VMs and slots by name, or random ones that break every rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlive.base import Random
from outlive.failover import ConflictIndex, SlotView, iter_bits
from outlive.failover.planner import PlacementOffer, PlanInput
from outlive.placement import VmView

GIB = 2**30


def vm(name: str, host: str, cores: int = 1, *, gib: int | None = None, **fields: Any) -> VmView:
    """A VM of zone ``z`` with so many cores, and as many GiB unless said otherwise."""
    size = {"cpu_milli": cores * 1000, "memory_bytes": (cores if gib is None else gib) * GIB}
    return VmView(id=name, host=host, **{"zone": "z", "flavor": f"f{cores}", **size, **fields})


def slot(
    name: str, host: str, cores: int = 1, *, gib: int | None = None, ready: bool | None = None, **members: str
) -> SlotView:
    """A slot of the same sizes. ``members``: VM → its host."""
    memory = (cores if gib is None else gib) * GIB
    return SlotView(name=name, host=host, cpu_milli=cores * 1000, memory_bytes=memory, members=members, ready=ready)


def plan_input(vms: list[VmView], on: Iterable[str], need: int | dict[str, int], **fields: Any) -> PlanInput:
    """All of these VMs may have slots on all of these hosts, of which none is better than another."""
    names = tuple(on)
    offer = {"": PlacementOffer(hosts=names, scores=(1.0,) * len(names))}
    required = need if isinstance(need, dict) else dict.fromkeys((one.id for one in vms), need)
    return PlanInput(vms=tuple(vms), required=required, hosts=names, **{"reuse": offer, "new": offer, **fields})


def hosts(count: int) -> list[str]:
    return [f"h{number:03}" for number in range(count)]


def vms(random: Random, count: int, on: list[str], *, sizes: tuple[int, ...] = (1,)) -> list[VmView]:
    """VMs ``v000`` … on random hosts; each size is so many cores and twice as many GiB."""
    views = []
    for number in range(count):
        size = random.choice(sizes)
        views.append(
            VmView(
                id=f"v{number:03}",
                host=random.choice(on),
                zone="z",
                flavor=f"f{size}",
                cpu_milli=size * 1000,
                memory_bytes=size * 2 * GIB,
            )
        )
    return views


def slots(random: Random, count: int, on: list[str], *, sizes: tuple[int, ...] = (1,)) -> list[SlotView]:
    """Empty slots ``s000`` … on random hosts."""
    return [
        SlotView(name=f"s{number:03}", host=random.choice(on), cpu_milli=size * 1000, memory_bytes=size * 2 * GIB)
        for number in range(count)
        for size in (random.choice(sizes),)
    ]


def filled(random: Random, empty: list[SlotView], members: list[VmView], memberships: int) -> list[SlotView]:
    """The slots with random members, without any regard to the rules."""
    inside: list[dict[str, str]] = [{} for _ in empty]
    for _ in range(memberships if inside else 0):
        vm = random.choice(members)
        random.choice(inside)[vm.id] = vm.host
    return [
        SlotView(name=slot.name, host=slot.host, cpu_milli=slot.cpu_milli, memory_bytes=slot.memory_bytes, members=who)
        for slot, who in zip(empty, inside, strict=True)
    ]


def eligible_slots(index: ConflictIndex, vm: str) -> list[str]:
    """Every slot that the VM may join by the rules, in name order; size and readiness are not looked at."""
    return sorted(index.slot_names[slot] for slot in iter_bits(index.admissible_slots(index.vm_number(vm))))
