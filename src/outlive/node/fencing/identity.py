"""Whose power controller that is: the system uuid that it says, compared with what is recorded of its host.

A uuid that two hosts have proves nothing of either: a controller that is wired to the wrong one of them would pass. The
same goes for what firmware says where nobody has set one.
"""

from __future__ import annotations

from typing import Final

from outlive.base.phrases import listing
from outlive.resources import Hypervisor

UNSET: Final = frozenset(
    {
        "03000200040005000006000700080009",  # of many boards, as their maker left it
        "00020003000400050006000700080009",  # the same, its first three parts read in the other byte order
        "12345678123456781234567812345678",
        "12345678123456789012345678901234",
        "not settable",
        "not specified",
        "not present",
        "to be filled by o.e.m.",
        "default string",
        "none",
        "unknown",
    }
)
"""What firmware says where nobody has given the system a uuid, besides one digit again and again."""
SHARED_NAMED: Final = 3
"""Hosts that a refusal names."""


def system_key(uuid: str) -> str:
    """The same for all spellings of one uuid; what is none stays text."""
    text = uuid.strip().strip("{}").casefold()
    digits = text.replace("-", "")
    return digits if len(digits) == 32 and all(one in "0123456789abcdef" for one in digits) else text


def is_unset(uuid: str) -> bool:
    """Whether any number of machines may say the same."""
    key = system_key(uuid)
    return key in UNSET or (len(key) == 32 and len({key[at : at + 2] for at in range(0, 32, 2)}) == 1)


def identity_problem(said: str, expected: str, shared_by: tuple[str, ...] = ()) -> str:
    """Why a controller that says ``said`` proves nothing of the host; empty: it is the host's own.

    ``expected`` is what is recorded of the host, and ``shared_by`` are other hosts of which the same is recorded.
    """
    if not expected:
        return f"no system uuid is recorded for it (its controller says {said or 'none'})"
    if not said or system_key(said) != system_key(expected):
        return f"its power controller speaks of system {said or 'unknown'}, and the host is {expected}"
    if is_unset(expected):
        return f"its system uuid {expected} is the default of its firmware, which other machines have as well"
    if shared_by:
        same = listing(shared_by, most=SHARED_NAMED)
        return f"it is recorded as the same system as {same} ({expected}), so its power controller may be theirs"
    return ""


class SystemIndex:
    """Which hosts are recorded with which system; ``changed`` is what an informer reports."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, None]] = {}

    def changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        """A document came, changed or went."""
        if old is not None:
            same = self._hosts.pop(_key(old), {})
            same.pop(old.name, None)
            if same:
                self._hosts[_key(old)] = same
        if new is not None and new.spec.fencing.system_uuid:
            self._hosts.setdefault(_key(new), {})[new.name] = None

    def shared_by(self, host: Hypervisor) -> tuple[str, ...]:
        """Other hosts that are recorded as the same system."""
        return tuple(sorted(name for name in self._hosts.get(_key(host), ()) if name != host.name))


def _key(host: Hypervisor) -> str:
    return system_key(host.spec.fencing.system_uuid)
