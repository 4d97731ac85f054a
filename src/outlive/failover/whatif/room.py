"""What hosts have free, resource by resource, while things come and go."""

from __future__ import annotations

from collections.abc import Mapping

from outlive.failover.model import SlotView, VmView, amounts_of

Needs = Mapping[str, int]


class Room:
    """Free amounts of every host. An empty table limits nothing; a host that a table leaves out has no room."""

    def __init__(self, free: Mapping[str, Mapping[str, int]]) -> None:
        self._limited = bool(free)
        self._free = {host: dict(amounts) for host, amounts in free.items()}

    def fits(self, host: str, needs: Needs) -> bool:
        """Whether the host has that much of everything."""
        if not self._limited:
            return True
        free = self._free.get(host)
        return free is not None and all(free.get(name, 0) >= amount for name, amount in needs.items() if amount > 0)

    def lacks(self, host: str, needs: Needs) -> dict[str, int]:
        """Resource → how much of it is missing on the host."""
        free = self._free.get(host, {}) if self._limited else dict(needs)
        return {
            name: amount - free.get(name, 0)
            for name, amount in needs.items()
            if amount > 0 and amount > free.get(name, 0)
        }

    def take(self, host: str, needs: Needs) -> None:
        """Something is on the host now."""
        free = self._free.get(host)
        if free is not None:
            for name, amount in needs.items():
                free[name] = free.get(name, 0) - amount

    def give(self, host: str, needs: Needs) -> None:
        """Something left the host."""
        self.take(host, {name: -amount for name, amount in needs.items()})

    def memory(self, host: str) -> int:
        """Free bytes of memory."""
        return self._free.get(host, {}).get("memory", 0)

    def has(self, host: str) -> bool:
        """Whether anything is known of the host, or nothing is limited."""
        return not self._limited or host in self._free

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        return self._limited

    def free(self, host: str) -> dict[str, int]:
        """Resource → free amount of a host; nothing where the host is unknown."""
        return dict(self._free.get(host, {}))


def needs_of(vm: VmView) -> dict[str, int]:
    """What a VM takes of its host."""
    return dict(amounts_of(vm))


def held_by(slot: SlotView) -> dict[str, int]:
    """What a slot takes of its host."""
    return {"cpu": slot.cpu_milli, "memory": slot.memory_bytes}


def holders(slot: SlotView) -> tuple[str, ...]:
    """The hosts on which a slot holds capacity: where it is, and where it is wanted."""
    return tuple(dict.fromkeys(host for host in (slot.host, slot.target_host) if host))
