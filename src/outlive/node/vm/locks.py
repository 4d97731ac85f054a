"""Whether the locks on a virtual machine's volumes let it start here, and which of them are stale.

A lock of this very host is stale: the host knows that the virtual machine is not running on it. A lock of a host that
was proven dead is stale as well. Any other may belong to a writer, and then nothing starts. Locks are the second
line: the holders of the virtual machine come first (docs/reference/node-decisions.md#rbdstart_locks).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal

import msgspec


class VolumeLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock as the storage lists it."""

    volume: str
    id: str
    address: str
    """Of the client that holds it, such as ``10.0.0.1:0/77`` or ``[fd00::1]:0/77``."""
    locker: str = ""


class StartLocksInput(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that is to start, and the locks on its storage."""

    storage_ip: str
    """This host's address on the storage network."""
    volumes: tuple[str, ...]
    locks: tuple[VolumeLock, ...]
    vm_state: str
    remove_fails: tuple[str, ...] = ()
    """Locks that could not be removed."""
    fenced_ips: tuple[str, ...] = ()
    """Addresses of hosts that are proven dead."""


class StartLocksResult(msgspec.Struct, frozen=True, kw_only=True):
    """Start or not; the locks removed on the way; and the one that forbids it."""

    result: Literal["start", "fail"]
    removed: tuple[str, ...]
    reason: Literal["foreign_lock", "lock_remove_failed"] | None
    lock: str | None


def start_locks(given: StartLocksInput) -> StartLocksResult:
    """Go through the locks in order and stop at the first that stays; what was removed before it stays removed."""
    removed: list[str] = []
    mine = {_same(address) for address in (given.storage_ip, *given.fenced_ips) if address}
    for lock in given.locks:
        if lock.volume not in given.volumes:
            continue
        if given.vm_state != "stop" and lock_owner(lock.address) not in mine:
            return StartLocksResult(result="fail", removed=tuple(removed), reason="foreign_lock", lock=lock.id)
        if lock.id in given.remove_fails:
            return StartLocksResult(result="fail", removed=tuple(removed), reason="lock_remove_failed", lock=lock.id)
        removed.append(lock.id)
    return StartLocksResult(result="start", removed=tuple(removed), reason=None, lock=None)


_Owner = IPv4Address | IPv6Address | str


def lock_owner(address: str) -> _Owner:
    """The host in a lock's address, without port and nonce."""
    if address.startswith("["):
        return _same(address[1:].partition("]")[0])
    whole = _same(address)
    return whole if not isinstance(whole, str) else _same(address.rpartition(":")[0] or address)


def _same(text: str) -> _Owner:
    """One value for all spellings of an address; text that is none stays text."""
    try:
        return ip_address(text)
    except ValueError:
        return text
