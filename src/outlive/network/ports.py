"""What the network needs of the outside: OVN's databases, who announces, and what northd can do.

``drivers.ovn`` implements them on real databases, ``simulation`` on virtual ones.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from outlive.network.copies import VmKey
from outlive.network.operations import Op, Rows


class OvnFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What northd can do, by its version; one that is not known counts as old."""

    version: str = ""
    arp_proxy_full: bool = False
    """The ARP proxy takes a MAC, IPv6 addresses and subnets (23.06)."""
    dhcpv6_fqdn: bool = False
    """DHCPv6 knows the option ``fqdn`` (23.09)."""
    chassis_list: bool = False
    """A port may be bound by two chassis, one of them waiting (22.06)."""
    strategies: tuple[str, ...] = ()
    """By what frame the one that waits is activated: ``rarp``, from 25.09 on ``garp`` and ``na``."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a plan reads: all that name one of these. An empty scope is the whole database."""

    vms: tuple[VmKey, ...] = ()
    """Rows that carry the VM's keys."""
    ports: tuple[str, ...] = ()
    """Logical switch ports by name."""
    addresses: tuple[str, ...] = ()
    """Without mask: routes to them and policies that match them; of cidrs, routes of exactly that prefix or within."""
    names: tuple[str, ...] = ()
    """Logical switches, routers and router ports."""
    isolated: bool = False
    """Ports that some host is isolated from (``ISOLATED_KEY``)."""
    networks: tuple[str, ...] = ()
    """Switches, routers and their ports that carry the key of one of these networks, whatever else is a port of these
    switches, and the cluster router."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that was committed, or was not needed."""

    ops: tuple[Op, ...] = ()
    """What was changed; empty: all rows were right."""
    nb_cfg: int = 0
    """The number that southbound and chassis repeat once they have it; where nothing was changed that of the last
    change, and 0 where it was not to be numbered."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """How far a transaction has come."""

    done: bool
    behind: tuple[str, ...] = ()
    """Chassis that have not reported it."""
    northd_ms: float | None = None
    """From the commit to the southbound rows …"""
    chassis_ms: float | None = None
    """… and to the flows of the slowest chassis, where OVN has the times."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Where a logical port is bound, as the southbound database says; a dead chassis keeps its bindings and ``up``."""

    port: str
    chassis: str = ""
    additional_chassis: tuple[str, ...] = ()
    requested_chassis: str = ""
    requested_additional_chassis: tuple[str, ...] = ()
    activated: tuple[str, ...] = ()
    """Additional chassis where the guest has spoken."""
    up: bool = False
    datapath: str = ""
    tunnel_key: int = 0


class Chassis(msgspec.Struct, frozen=True, kw_only=True):
    """A chassis that has registered."""

    name: str
    hostname: str = ""
    nb_cfg: int = 0
    """The last change that its flows have."""
    encap_ip: str = ""


def chassis_name(host: str, known: Iterable[Chassis]) -> str:
    """The chassis of a host whose record names none: of its name, else of its host name; else the host's name."""
    found = list(known)
    if any(one.name == host for one in found):
        return host
    return next((one.name for one in found if host in (one.hostname, one.hostname.partition(".")[0])), host)


Plan = Callable[[Rows, OvnFeatures], Sequence[Op]]
"""From rows to operations. Pure: a driver calls it again where somebody else changed the rows meanwhile."""


class NorthboundDb(Protocol):
    """The northbound database of one zone.

    ``Unavailable``: it does not answer; ``Unknown``: whether the transaction was committed is not known;
    ``Refused``: the database does not take it, with its words; ``Conflict``: others changed the rows each time.
    """

    async def read_rows(self, scope: Scope = Scope()) -> Rows:
        """The rows of a scope, as they are now; copies."""
        ...

    async def transact(self, scope: Scope, plan: Plan, *, comment: str, numbered: bool = True) -> Receipt:
        """Read the scope, plan, and commit all operations or none.

        The commit holds only if what the operations touch is as it was read; else everything is done again, a few
        times. ``LimitExceeded`` for more than ``operations.LIMIT`` operations. ``numbered=False``: nobody waits until
        it is ``wait_applied``, which spares every chassis a report.
        """
        ...

    async def renumber(self, *, comment: str, beyond: int = 0) -> Receipt:
        """Raise the number that chassis repeat, without another change, to more than ``beyond``.

        A database that was restored counts from an older number on, and chassis still report numbers of before.
        """
        ...

    async def wait_applied(self, receipt: Receipt, *, on: Collection[str], limit_s: float) -> Applied:
        """Wait until the southbound database and these chassis have the transaction, for at most so long."""
        ...

    def read_features(self) -> OvnFeatures:
        """Of northd as it runs now."""
        ...

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """Names of what somebody else changed (ports, ``namespace/vm`` of rows, ``OWN_NETWORK`` and a network), in
        batches; endless.

        An empty set: everything may have changed, because the connection was made anew.
        """
        ...

    def explain_unhealthy(self) -> str:
        """Why it cannot be used now; empty: it can."""
        ...


async def last_change(northbound: NorthboundDb) -> int:
    """The number of the last change that chassis were to report; nothing is written for it."""
    receipt = await northbound.transact(Scope(ports=("",)), lambda _rows, _features: (), comment="last change")
    return receipt.nb_cfg


class SouthboundDb(Protocol):
    """The southbound database of one zone, read only but for ``forget_chassis``. Errors as ``NorthboundDb``."""

    async def read_binding(self, port: str) -> Binding | None:
        """Where the port is bound; ``None``: there is no such port."""
        ...

    async def list_chassis(self) -> list[Chassis]:
        """All that have registered, dead ones too."""
        ...

    async def mac_bindings(self, address: str) -> list[str]:
        """MACs that routers have learned for the address."""
        ...

    async def forget_chassis(self, name: str) -> None:
        """Remove a chassis and its tunnels; one that lives registers again."""
        ...

    def watch_changes(self) -> AsyncIterator[frozenset[str]]:
        """Names of ports whose bindings changed, in batches; endless. An empty set: all may have changed."""
        ...

    def explain_unhealthy(self) -> str:
        """Why it cannot be used now; empty: it can."""
        ...


class PacketTracer(Protocol):
    """Follows a packet through the logical flows of one zone."""

    async def trace(self, switch: str, flow: str) -> str:
        """What ``ovn-trace`` prints of a packet that begins on this switch. ``Unavailable``; ``Refused`` with its words
        where it does not take the packet."""
        ...


class NeighbourTable(Protocol):
    """Entries by which this machine tells an EVPN fabric of VMs here. Both calls may be repeated."""

    async def ensure(self, network: str, mac: str, addresses: Collection[str]) -> None:
        """The machine has the MAC, and the addresses (without mask) at it. ``Unavailable``."""
        ...

    async def delete(self, network: str, mac: str, addresses: Collection[str]) -> None:
        """The machine has them no longer; what the fabric itself has told of them stays. ``Unavailable``."""
        ...


class Announcer(Protocol):
    """Sends frames into interfaces of this machine."""

    async def send(
        self, interface: str, frames: Sequence[bytes], schedule_ms: Sequence[int], *, vlan: int | None = None
    ) -> int:
        """Send all frames at each time of the schedule, from now on; how many were sent. ``Unavailable``."""
        ...


_CHASSIS_LIST: Final = (22, 6)
_ARP_PROXY: Final = (23, 6)
_FQDN: Final = (23, 9)
_ALL_STRATEGIES: Final = (25, 9)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)[.-]")


def ovn_features(version: str) -> OvnFeatures:
    """The features of a version as northd writes it (``23.03.1-20.27.0-70.6``); none of one that is not understood."""
    found = _VERSION.match(version + ".")
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    strategies: tuple[str, ...] = ()
    if number >= _CHASSIS_LIST:
        strategies = ("rarp", "garp", "na") if number >= _ALL_STRATEGIES else ("rarp",)
    return OvnFeatures(
        version=version,
        arp_proxy_full=number >= _ARP_PROXY,
        dhcpv6_fqdn=number >= _FQDN,
        chassis_list=number >= _CHASSIS_LIST,
        strategies=strategies,
    )
