"""Whose BMC that is: the system uuid that it says, compared with what is known of its host.

That is what ``spec.fencing.systemUuid`` says; where it is empty, what the machine said of its board when it joined. A
host's token is bound to that (``node.permissions``), and its Membership names the board together with the epoch that is
to be proven dead: a host can neither change it later, nor be another machine in the same epoch.

A uuid that two hosts have proves nothing of either: a controller that is wired to the wrong one of them would pass. The
same goes for what firmware says where nobody has set one.
"""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from outlive.base import join_parts
from outlive.resources import Hypervisor, MemberRecord, Membership

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


def system_key(system: str) -> str:
    """The same for all spellings of one uuid; what is none stays text."""
    text = system.strip().strip("{}").casefold()
    digits = text.replace("-", "")
    return digits if len(digits) == 32 and all(one in "0123456789abcdef" for one in digits) else text


def is_unset(system: str) -> bool:
    """Whether any number of machines may say the same."""
    key = system_key(system)
    return key in UNSET or (len(key) == 32 and len({key[at : at + 2] for at in range(0, 32, 2)}) == 1)


def identity_problem(said: str, expected: str, shared_by: tuple[str, ...] = ()) -> str:
    """Why a controller that says ``said`` proves nothing of the host; empty: it is the host's own.

    ``expected`` is what is known of the host, and ``shared_by`` are other hosts of which the same is known.
    """
    if not expected:
        return (
            "no system uuid is recorded for it (spec.fencing.systemUuid), and its firmware says none (its controller "
            f"says {said or 'none'})"
        )
    if not said or system_key(said) != system_key(expected):
        return f"its BMC speaks of system {said or 'unknown'}, and the host is {expected}"
    if is_unset(expected):
        return f"its system uuid {expected} is the default of its firmware, which other machines have as well"
    if shared_by:
        same = join_parts(shared_by, most=SHARED_NAMED)
        return f"it is recorded as the same system as {same} ({expected}), so its BMC may be theirs"
    return ""


def expected_system(host: Hypervisor, record: MemberRecord | None) -> str:
    """Which system its BMC must say; empty: nobody knows."""
    return host.spec.fencing.system_uuid or (record.board if record is not None else "")


def board_problem(recorded: str, board: str) -> str:
    """Why what is recorded of a host is not what its firmware says, in whatever order of bytes; empty: it is, or nobody
    can say."""
    if not recorded or not board or system_key(recorded) in _list_byte_orders(board):
        return ""
    return f"spec.fencing.systemUuid is {recorded}, and the firmware of the machine says {uuid.UUID(board)}"


def _list_byte_orders(board: str) -> tuple[str, ...]:
    """The same uuid as SMBIOS, IPMI and print have it."""
    one = uuid.UUID(board)
    return one.hex, one.bytes_le.hex(), one.bytes[::-1].hex()


class SystemIndex:
    """Which hosts are known as which system; ``on_hypervisor`` and ``on_membership`` are what informers report."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, None]] = {}
        """System → hosts."""
        self._keys: dict[str, tuple[str, ...]] = {}
        """Host → what is recorded of it, and what its firmware says, in every order of bytes: controllers may be
        crossed, and what was recorded by asking them as well."""
        self._recorded: dict[str, str] = {}
        self._boards: dict[str, str] = {}

    def on_hypervisor(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        """A document came, changed or went."""
        for one in (old, new):
            if one is not None:
                self._say(self._recorded, one.name, "" if new is None else new.spec.fencing.system_uuid)

    def on_membership(self, old: Membership | None, new: Membership | None) -> None:
        """A membership came, changed or went."""
        if old is None or new is None or old.record.machine_id != new.record.machine_id:
            for one in (old, new):
                if one is not None:
                    self._say(self._boards, one.name, "" if new is None else new.record.board)

    def with_system(self, host: Hypervisor) -> Hypervisor:
        """With the system that its BMC must say."""
        fencing = host.spec.fencing
        board = self._boards.get(host.name, "")
        if fencing.system_uuid or not board:
            return host
        spec = msgspec.structs.replace(host.spec, fencing=msgspec.structs.replace(fencing, system_uuid=board))
        return msgspec.structs.replace(host, spec=spec)

    def shared_by(self, host: Hypervisor) -> tuple[str, ...]:
        """Other hosts that are known as the same system."""
        same = self._hosts.get(system_key(self.with_system(host).spec.fencing.system_uuid), ())
        return tuple(sorted(name for name in same if name != host.name))

    def _say(self, where: dict[str, str], host: str, system: str) -> None:
        """Keep what is said of the host, and have the index follow."""
        if where.get(host, "") == system:
            return
        if system:
            where[host] = system
        else:
            del where[host]
        recorded, board = self._recorded.get(host, ""), self._boards.get(host, "")
        keys = dict.fromkeys([system_key(recorded)] * bool(recorded) + [*(_list_byte_orders(board) if board else ())])
        for key in self._keys.pop(host, ()):
            same = self._hosts[key]
            del same[host]
            if not same:
                del self._hosts[key]
        if keys:
            self._keys[host] = tuple(keys)
        for key in keys:
            self._hosts.setdefault(key, {})[host] = None
