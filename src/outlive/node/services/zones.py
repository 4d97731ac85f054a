"""Zones of managed networks, as the name server of the primary coordinator answers them.

Each network's dnsmasq knows the names of its guests; a transfer of its zone is compared with what the name server has,
and the difference is one transaction. Serial numbers rise over all coordinators: each term of the primary begins with
numbers of its own, above all of the terms before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from outlive.node.services.served_networks import ServedNetwork

REFRESH_S: Final = 10_800
RETRY_S: Final = 1_800
EXPIRE_S: Final = 86_400
MINIMUM_S: Final = 86_400
TTL_S: Final = 3_600
SERIALS_OF_TERM: Final = 1 << 16
"""Serial numbers that one term has for itself."""
SERIALS: Final = 1 << 32
APEX_TYPES: Final = frozenset({"SOA", "NS"})


class ZoneRecord(msgspec.Struct, frozen=True, order=True):
    """One record: name without the final dot, type, content, seconds that it may be kept."""

    name: str
    type: str
    content: str
    ttl: int = TTL_S


class ZoneState(msgspec.Struct, frozen=True):
    """A zone as the name server has it, without its SOA."""

    serial: int = 0
    """0: the zone is new."""
    soa: str = ""
    records: frozenset[ZoneRecord] = frozenset()


class ZoneChange(msgspec.Struct, frozen=True):
    """What is written in one transaction."""

    zone: str
    soa: ZoneRecord
    add: tuple[ZoneRecord, ...] = ()
    remove: tuple[ZoneRecord, ...] = ()


def plan_zone(
    network: ServedNetwork,
    have: ZoneState,
    transferred: Iterable[ZoneRecord] | None,
    *,
    default_server: str,
    term: int,
) -> ZoneChange | None:
    """Return what to write so that the zone is as its network's server says; ``None``: nothing.

    ``transferred``: records of the transfer; ``None`` if there was none: guests' names stay as they are.
    """
    zone = network.domain
    servers = network.name_servers or (default_server,)
    wanted = {ZoneRecord(zone, "NS", server) for server in servers}
    if transferred is None:
        wanted |= {one for one in have.records if (one.name, one.type) != (zone, "NS")}
    else:
        wanted |= {
            one
            for one in transferred
            if (one.name == zone or one.name.endswith(f".{zone}")) and not (one.name == zone and one.type in APEX_TYPES)
        }
    add, remove = sorted(wanted - have.records), sorted(have.records - wanted)
    begin = f"{servers[0]} hostmaster.{zone}"
    if not add and not remove and have.serial and have.soa.startswith(f"{begin} "):
        return None
    serial = max(have.serial + 1, term * SERIALS_OF_TERM + 1) % SERIALS
    soa = f"{begin} {serial} {REFRESH_S} {RETRY_S} {EXPIRE_S} {MINIMUM_S}"
    return ZoneChange(zone, ZoneRecord(zone, "SOA", soa), tuple(add), tuple(remove))
