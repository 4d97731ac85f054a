"""All services of a host as one set of ports, and its firewall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from outlive.base import Clock, Refused, Unavailable
from outlive.drivers.commands import run
from outlive.drivers.services.dhcp_servers import DnsmasqServers
from outlive.drivers.services.metadata_server import MetadataServer
from outlive.drivers.services.name_server import PowerDnsServer
from outlive.drivers.services.supervisor import Supervisor
from outlive.node.ports import ServicePorts

LIMIT_S: Final = 10.0
SHOWN: Final = 300


class NftFirewall:
    """``FirewallPort`` with ``nft -f``, which carries a document out as one transaction."""

    def __init__(self, program: str = "nft") -> None:
        self._program = program

    async def load(self, document: str) -> None:
        """Put the document in force; ``Refused`` where nft does not take it."""
        await self._check_rules(document)

    async def check(self, document: str) -> None:
        """Have nft look at it."""
        await self._check_rules(document, "--check")

    async def has_chain(self, table: str, chain: str) -> bool:
        """Whether nft lists the chain."""
        ended = await run([self._program, "list", "chain", "inet", table, chain], limit_s=LIMIT_S)
        if ended.killed:
            raise Unavailable(f"{self._program} did not end within {LIMIT_S:g} s", remedy="see its log")
        return ended.code == 0

    async def _check_rules(self, document: str, *options: str) -> None:
        ended = await run([self._program, *options, "-f", "-"], limit_s=LIMIT_S, stdin=document.encode())
        if ended.killed:
            raise Unavailable(f"{self._program} did not end within {LIMIT_S:g} s", remedy="see its log")
        if ended.code != 0:
            why = " ".join(ended.err.split())[:SHOWN]
            raise Refused(f"nft does not take the rules: {why}", remedy="correct the rule: man nft")


def service_ports(
    folder: Path,
    public: Path,
    clock: Clock,
    *,
    watch: Callable[[int], None] | None = None,
    dnsmasq: str = "dnsmasq",
    pdns: str = "pdns_server",
) -> ServicePorts:
    """Return the real ones; ``watch`` is called with each process.

    ``folder``: of the daemon alone, and there after a boot; ``public``: where programs read that give up their rights.
    What a former daemon left running is ended.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public.mkdir(mode=0o755, parents=True, exist_ok=True)
    supervisor = Supervisor(folder / "programs", clock, watch=watch)
    supervisor.end_leftovers()
    return ServicePorts(
        dhcp=DnsmasqServers(folder / "dhcp", public / "dhcp", supervisor, clock, program=dnsmasq),
        names=PowerDnsServer(public / "names", supervisor, program=pdns),
        firewall=NftFirewall(),
        metadata=MetadataServer(),
    )
