"""What OVN has, compared with what should be: rows that are missing, wrong or surplus, and where ports are bound. Pure.

``outlive network check`` prints it (docs/reference/cli.md#network). What should be is planned by the decisions that the
controller commits, so nothing else says what a row looks like.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from outlive.base import Invalid
from outlive.network.addressing import parse_any, parse_mac
from outlive.network.copies import VmKey
from outlive.network.names import (
    CLUSTER_ROUTER,
    DEFAULT_NETWORK,
    ID_KEY,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    VM_KEY,
)
from outlive.network.operations import (
    DHCP,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    Columns,
    Op,
    Rows,
    apply,
    find,
    is_same,
    patch_row,
)
from outlive.network.owners import external_ids, vm_in
from outlive.network.ports import Binding
from outlive.network.routes import BY_DESTINATION
from outlive.resources.reasons import NetworkReason, Reason, make_reason, render

# Rows that contradict each other: two places that answer for one VM.
#
# ``outlive network check`` asks a real database, and the judge of the simulation asks after every step
# (docs/design/network-decisions.md#conflicts).

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
    for rule, place, subject, row in (*_route_claims(rows.get(ROUTES, ())), *_port_claims(rows.get(PORTS, ()))):
        other = first.setdefault((rule, place, subject), row)
        vms = tuple(dict.fromkeys(str(vm) for vm in (_vm_of(other), _vm_of(row)) if vm is not None))
        is_allowed = other is row or (rule is ConflictRule.ADDRESS and len(vms) < 2)
        if not is_allowed and len(found) < CONFLICTS_LIMIT:
            found.append(RowConflict(rule=rule, place=place, subject=subject, rows=(other, row), vms=vms))
    return found


_Claim = tuple[ConflictRule, str, str, Columns]
"""A rule, the place and the subject that the row claims for itself."""


def _route_claims(rows: Iterable[Columns]) -> Iterator[_Claim]:
    for row in rows:
        table = row.get("route_table", "")
        router = row.get("router") or CLUSTER_ROUTER
        subject = f"{row.get('ip_prefix', '')} {row.get('policy') or BY_DESTINATION}"
        yield ConflictRule.ROUTE, f"{router} table {table}" if table else router, subject, row


def _port_claims(rows: Iterable[Columns]) -> Iterator[_Claim]:
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


FINDINGS_LIMIT: Final = 1000
"""Findings of one answer; a database with more of them has one cause."""
_CONFLICTS: Final = {
    ConflictRule.MAC: NetworkReason.MAC_CONFLICT,
    ConflictRule.ROUTE: NetworkReason.ROUTE_CONFLICT,
    ConflictRule.ADDRESS: NetworkReason.ADDRESS_CONFLICT,
}


class ColumnDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One column of a row that is wrong."""

    column: str
    found: object = None
    wanted: object = None


class NetworkFinding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One thing that is not as it should be."""

    about: str
    """``VirtualMachine/<name>``, ``VirtualNetwork/<name>`` or ``VirtualMachinePort/<name>``."""
    code: str
    """Of ``resources.reasons.NetworkReason``."""
    text: str
    remedy: str = ""
    table: str = ""
    """OVN's table, where it is about rows."""
    row: str = ""
    """The row in words."""
    columns: tuple[ColumnDifference, ...] = ()
    """Of a row that is wrong."""


class NetworkInspection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that was looked at, and what was found."""

    networks: int
    vms: int
    ports: int
    """That are meant to be in OVN."""
    change: int
    """The number of OVN's last change, which chassis repeat once they have it."""
    findings: tuple[NetworkFinding, ...]
    more: int = 0
    """Findings beyond ``FINDINGS_LIMIT``."""


def build_finding(about: str, why: Reason, **parts: object) -> NetworkFinding:
    """A finding with the sentence and the remedy of its reason."""
    message = render(why)
    return msgspec.convert(
        {"about": about, "code": why.code, "text": message.text, "remedy": message.remedy, **parts}, NetworkFinding
    )


def describe_row(table: str, row: Columns) -> str:
    """A row in words, by what it is found in OVN."""
    name = row.get("name", "")
    match table:
        case "Logical_Switch_Port":
            return f"logical port {name}" + (f" on switch {row['switch']}" if row.get("switch") else "")
        case "Logical_Router_Port":
            return f"router port {name}"
        case "Logical_Switch":
            return f"logical switch {name}"
        case "Logical_Router":
            return f"logical router {name}"
        case "Logical_Router_Static_Route":
            return f"the route to {row.get('ip_prefix', '')} on {row.get('router') or CLUSTER_ROUTER}"
        case "Logical_Router_Policy":
            return f"the policy {row.get('match', '')!r} on {row.get('router') or CLUSTER_ROUTER}"
        case "DHCP_Options":
            return f"the DHCP row for {row.get('cidr', '')} ({external_ids(row).get(ID_KEY, 'without an id')})"
    return f"a row of {table}"


def compare_rows(about: str, ops: Iterable[Op], rows: Rows) -> Iterator[NetworkFinding]:
    """What a plan would change in these rows: each row once, as missing, wrong or surplus."""
    told: set[str] = set()
    for op in ops:
        found = find(rows.get(op.table, ()), op.where)
        surplus = found if op.op == "DeleteWhere" else found[1:]
        if op.op != "DeleteWhere":
            before = found[0] if found else {}
            after = patch_row(before, op.patch)
            words = describe_row(op.table, after)
            if words not in told:
                told.add(words)
                yield (
                    _build_difference(about, op.table, words, before, after)
                    if found
                    else build_finding(
                        about, make_reason(NetworkReason.ROW_MISSING, row=words), table=op.table, row=words
                    )
                )
        for row in surplus:
            words = describe_row(op.table, row)
            yield build_finding(about, make_reason(NetworkReason.ROW_SURPLUS, row=words), table=op.table, row=words)
        rows = apply(rows, (op,))


def _build_difference(about: str, table: str, words: str, before: Columns, after: Columns) -> NetworkFinding:
    columns = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) or isinstance(new, dict):
            keys = sorted({*(old or {}), *(new or {})})
            columns += [
                ColumnDifference(column=f"{name}:{key}", found=(old or {}).get(key), wanted=(new or {}).get(key))
                for key in keys
                if (old or {}).get(key) != (new or {}).get(key)
            ]
        elif not is_same(old, new):
            columns.append(ColumnDifference(column=name, found=old, wanted=new))
    why = make_reason(NetworkReason.ROW_WRONG, row=words, columns=", ".join(one.column for one in columns))
    return build_finding(about, why, table=table, row=words, columns=columns)


def find_row_conflicts(rows: Rows, names: Collection[str] | None = None) -> Iterator[NetworkFinding]:
    """Rows that contradict each other; ``names``: only those that are about one of these objects."""
    for one in find_conflicts(rows):
        table = ROUTES if one.rule is ConflictRule.ROUTE else PORTS
        vms = [f"VirtualMachine/{vm.partition('/')[2]}" for vm in one.vms if vm.startswith(f"{OWN_NAMESPACE}/")]
        networks = [f"VirtualNetwork/{ids[NETWORK_KEY]}" for ids in map(external_ids, one.rows) if NETWORK_KEY in ids]
        abouts = [*vms, *networks] or [f"OVN/{one.place}"]
        if names is None or any(about in names for about in abouts):
            words = " and ".join(describe_row(table, row) for row in one.rows)
            why = make_reason(_CONFLICTS[one.rule], rows=words, subject=one.subject, place=one.place)
            yield build_finding(abouts[0], why, table=table)


def find_named(rows: Rows) -> tuple[set[str], set[str]]:
    """VMs and networks of our own hosts that rows of the network controller name."""
    vms, networks = set[str](), set[str]()
    for table in (PORTS, ROUTES, POLICIES, DHCP, SWITCHES, ROUTERS, ROUTER_PORTS):
        for row in rows.get(table, ()):
            ids = external_ids(row)
            if ids.get(OWNER_KEY) != OWN_CONTROLLER:
                continue
            vm = vm_in(ids)
            if vm is not None and vm.namespace == OWN_NAMESPACE:
                vms.add(vm.name)
            elif NETWORK_KEY in ids and VM_KEY not in ids:
                networks.add(ids[NETWORK_KEY])
    return vms, networks


def judge_binding(about: str, port: str, host: str, chassis: str, binding: Binding | None) -> NetworkFinding | None:
    """Whether the port is bound by the chassis of its host, and up."""
    if binding is None or not binding.chassis:
        return build_finding(about, make_reason(NetworkReason.NOT_BOUND, host=host, port=port))
    if binding.chassis != chassis:
        return build_finding(
            about,
            make_reason(NetworkReason.BOUND_ELSEWHERE, port=port, found=binding.chassis, wanted=chassis, host=host),
        )
    return None if binding.up else build_finding(about, make_reason(NetworkReason.PORT_DOWN, port=port, host=host))


def judge_learned(about: str, address: str, mac: str, learned: Iterable[str]) -> NetworkFinding | None:
    """Whether routers know the address with another MAC than that of its port."""
    others = sorted({one for one in learned if one.lower() != mac.lower()})
    if not others:
        return None
    return build_finding(
        about, make_reason(NetworkReason.MAC_LEARNED, found=", ".join(others), address=address, mac=mac)
    )
