"""Programs of the primary coordinator that serve managed networks, and who takes its addresses away if it cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlive.node.services.callers import MetadataAnswer
from outlive.node.services.dhcp import LeaseChange, ServedLease
from outlive.node.services.served_networks import ServedNetwork
from outlive.node.services.zones import ZoneChange, ZoneRecord, ZoneState

AnswerCaller = Callable[[str, str, str], Awaitable[MetadataAnswer]]
"""Of bridge, address of the caller, and path."""


class DhcpPort(Protocol):
    """One DHCP server for each network, with its name server for guests."""

    async def serve(self, network: ServedNetwork, leases: Callable[[], Collection[ServedLease]]) -> None:
        """Have a server run for this network as it is now, with the leases that there are when it starts.

        A server that runs is started again only if something has changed that it reads at its start alone. What fails
        is among the ``list_failures``, and is tried again by the next call.
        """
        ...

    async def end(self, names: Collection[str]) -> None:
        """Stop the servers of these networks, all at once, within 2 s."""
        ...

    def list_failures(self) -> Mapping[str, str]:
        """Networks whose server does not run → why."""
        ...

    async def take_changes(self) -> Sequence[LeaseChange]:
        """Changes of leases since the last ``forget_changes``, in their order."""
        ...

    async def forget_changes(self) -> None:
        """Drop what the last ``take_changes`` gave: the store has it."""
        ...

    async def wait_changed(self, limit_s: float) -> None:
        """Return when a lease may have changed, or after ``limit_s``."""
        ...

    def close(self) -> None:
        """Stop waiting for changes."""
        ...


class NamePort(Protocol):
    """The name server of the coordinator, with the zones of all managed networks."""

    async def start(self, addresses: Collection[str]) -> None:
        """Have it answer on these addresses; ``Unavailable`` if it cannot be started."""
        ...

    async def stop(self) -> None:
        """Stop it, within 2 s."""
        ...

    def explain_failure(self) -> str:
        """Why it does not run; empty: it runs, or need not."""
        ...

    async def transfer(self, network: ServedNetwork) -> Sequence[ZoneRecord]:
        """What the network's own server says of its zone; ``Unavailable``."""
        ...

    async def read_zone(self, zone: str) -> ZoneState:
        """A zone as it is now."""
        ...

    async def change_zone(self, change: ZoneChange) -> None:
        """Write one change, all of it or nothing."""
        ...

    async def keep_zones(self, zones: Collection[str]) -> None:
        """Remove all other zones."""
        ...


class FirewallPort(Protocol):
    """The firewall of the host's own kernel."""

    async def load(self, document: str) -> None:
        """Carry the document out as one transaction; ``Refused`` with what is wrong in it, and nothing has changed."""
        ...

    async def check(self, document: str) -> None:
        """The same without effect."""
        ...

    async def has_chain(self, table: str, chain: str) -> bool:
        """Whether the kernel has this chain of this table of both families; ``Unavailable``."""
        ...


class MetadataPort(Protocol):
    """An HTTP server that knows by which bridge a request came."""

    async def listen(self, bridges: Collection[str], answer: AnswerCaller) -> None:
        """Listen on these bridges and no others."""
        ...

    async def stop(self) -> None:
        """Listen nowhere."""
        ...

    def list_failures(self) -> Mapping[str, str]:
        """Bridges where it cannot listen → why."""
        ...


class RoleGuardPort(Protocol):
    """A separate process that removes the primary's addresses and programs even if the daemon fails.

    It removes the addresses that it knows, and ends the programs, once the role has expired, and at once when the
    daemon is gone.
    """

    async def start(self) -> None:
        """Start it, if it does not run, or reads nothing; ``Unavailable``."""
        ...

    async def extend(self, seconds: float) -> None:
        """The role is this host's for so long from now."""
        ...

    async def hold(self, device: str, address: str) -> None:
        """Remember an address before it is added; ``Unavailable`` if the process could not remove it."""
        ...

    async def list_leftovers(self) -> Sequence[tuple[str, str]]:
        """Addresses that a former daemon has not released, as device and address; it knows them from now on."""
        ...

    async def release(self, device: str, address: str) -> None:
        """Forget an address that was removed."""
        ...

    async def close(self) -> None:
        """End it; it removes the addresses."""
        ...


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """What services of managed networks need of the host."""

    dhcp: DhcpPort
    names: NamePort
    firewall: FirewallPort
    metadata: MetadataPort
