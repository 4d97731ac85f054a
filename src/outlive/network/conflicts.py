"""Rows that contradict each other: two places that answer for one VM.

``outlive network check`` asks a real database, and the judge of the simulation asks after every step
(docs/reference/network-decisions.md#conflicts).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from outlive.base.errors import Invalid
from outlive.network.addressing import parse_any, parse_mac
from outlive.network.copies import VmKey
from outlive.network.names import CLUSTER_ROUTER, DEFAULT_NETWORK, NETWORK_KEY
from outlive.network.operations import PORTS, ROUTES, Columns, Rows
from outlive.network.owners import external_ids, vm_in
from outlive.network.routes import BY_DESTINATION

CONFLICTS_LIMIT: Final = 1000
"""Conflicts that are reported; a database with more of them has one cause."""


class ConflictRule(enum.StrEnum):
    """What two rows violate."""

    MAC = "mac"
    """On a switch at most one port has addresses of a MAC: of two, one may drop what the other should get."""
    ROUTE = "route"
    """On a router at most one route has a prefix and policy: two share the flows."""
    ADDRESS = "address"
    """On a network at most one VM has an address."""


class RowConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two rows of which one is too many."""

    rule: ConflictRule
    place: str
    """The switch, the router or the network."""
    subject: str
    """The MAC, the prefix with its policy, or the address."""
    rows: tuple[Columns, Columns]
    vms: tuple[str, ...]
    """``namespace/name`` of those that the rows name."""


def find_conflicts(rows: Rows) -> list[RowConflict]:
    """All conflicts of one database, in the order of its rows, each row with the first of its kind."""
    found: list[RowConflict] = []
    first: dict[tuple[ConflictRule, str, str], Columns] = {}
    for rule, place, subject, row in (*_routes(rows.get(ROUTES, ())), *_ports(rows.get(PORTS, ()))):
        other = first.setdefault((rule, place, subject), row)
        vms = tuple(dict.fromkeys(str(vm) for vm in (_vm_of(other), _vm_of(row)) if vm is not None))
        is_allowed = other is row or (rule is ConflictRule.ADDRESS and len(vms) < 2)
        if not is_allowed and len(found) < CONFLICTS_LIMIT:
            found.append(RowConflict(rule=rule, place=place, subject=subject, rows=(other, row), vms=vms))
    return found


_Claim = tuple[ConflictRule, str, str, Columns]
"""A rule, the place and the subject that the row claims for itself."""


def _routes(rows: Iterable[Columns]) -> Iterator[_Claim]:
    for row in rows:
        table = row.get("route_table", "")
        router = row.get("router") or CLUSTER_ROUTER
        subject = f"{row.get('ip_prefix', '')} {row.get('policy') or BY_DESTINATION}"
        yield ConflictRule.ROUTE, f"{router} table {table}" if table else router, subject, row


def _ports(rows: Iterable[Columns]) -> Iterator[_Claim]:
    for row in rows:
        network = external_ids(row).get(NETWORK_KEY, DEFAULT_NETWORK)
        for text in row.get("addresses", ()):
            words = text.split()
            try:
                mac, addresses = parse_mac(words[0]), [str(parse_any(word)) for word in words[1:]]
            except (Invalid, IndexError):
                continue  # ``router``, ``unknown`` and ``dynamic`` are no addresses
            yield ConflictRule.MAC, row.get("switch", ""), mac, row
            yield from ((ConflictRule.ADDRESS, network, address, row) for address in addresses)


def _vm_of(row: Columns) -> VmKey | None:
    return vm_in(external_ids(row))
