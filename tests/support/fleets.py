"""Random fleets for tests of failover: small enough for brute force, wild enough to break every rule."""

from __future__ import annotations

from outlive.base.random import Random
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.slotsets import bits
from outlive.placement.vms import VmView

GIB = 2**30


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
    return sorted(index.slot_names[slot] for slot in bits(index.admissible(index.vm(vm))))
