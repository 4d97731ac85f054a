"""Which slots are in which failure domains that are kept apart: bit sets by value, kept change by change.

Part of the counted state (module ``tallies``), so that "all slots outside these racks" is a few lookups. Without
domains to keep apart it is empty and costs nothing (docs/reference/failover.md#separation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Domains:
    """Hosts and slots by the values of the domains that are kept apart."""

    def __init__(self, apart: Mapping[str, Mapping[str, str]]) -> None:
        """``apart``: domain → host → value."""
        self.version = 0
        """Rises when a host's values change."""
        self._value = {domain: dict(values) for domain, values in apart.items()}
        self._slots: dict[str, dict[str, int]] = {domain: {} for domain in apart}

    def __bool__(self) -> bool:
        return bool(self._value)

    @property
    def names(self) -> Iterable[str]:
        """The domains that are kept apart."""
        return self._value.keys()

    def value(self, domain: str, host: str) -> str | None:
        """The host's value, if it has one."""
        return self._value[domain].get(host)

    def put(self, slots: int, host: str) -> None:
        """These slots, a bit set, are on the host."""
        for domain, values in self._value.items():
            value = values.get(host)
            if value is not None:
                known = self._slots[domain]
                known[value] = known.get(value, 0) | slots

    def remove(self, slots: int, host: str) -> None:
        """These slots are on the host no more."""
        for domain, values in self._value.items():
            value = values.get(host)
            if value is not None:
                self._slots[domain][value] &= ~slots

    def relabel(self, host: str, values: Mapping[str, str], slots: int) -> bool:
        """The host is in these domains now; ``slots`` are on it. Whether that is new."""
        if all(known.get(host) == values.get(domain) for domain, known in self._value.items()):
            return False
        self.remove(slots, host)
        for domain, known in self._value.items():
            known.pop(host, None)
            if domain in values:
                known[host] = values[domain]
        self.put(slots, host)
        self.version += 1
        return True

    def slots_near(self, hosts: Iterable[str]) -> int:
        """The slots that are in a domain with any of these hosts."""
        found = 0
        for domain, values in self._value.items():
            slots = self._slots[domain]
            for value in {values.get(host) for host in hosts}:
                found |= slots.get(value, 0) if value is not None else 0
        return found
