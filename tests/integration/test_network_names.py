"""Names, rules and ranges with the real programs: what is missing, dead, refused or full, and what changes at once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_network_services import Services, hosts, network, public, until  # noqa: F401 - fixtures
from tests.support.network_hosts import NetworkHosts

from outlive.drivers.services import service_ports
from outlive.resources import DhcpRange, FirewallRule, Subnet, VirtualNetwork

pytestmark = [pytest.mark.component("network-services"), pytest.mark.slow]
AT_ONCE_S = 2.0
"""All zones are brought up to date every ten seconds as well."""


async def change_spec(services: Services, name: str, **changes: Any) -> None:
    found = await services.store.get(VirtualNetwork, name)
    await services.store.replace(msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, **changes)))


def test_names_outlive_their_server_and_follow_the_network_at_once(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "192.0.2.1/32", "dev", "lo")

    async def dig(*words: str) -> list[str]:
        words = ("+time=1", "+tries=1", *words, "@192.0.2.1")
        try:
            return (await asyncio.to_thread(hosts.run, "a", "dig", "+short", *words)).split()
        except AssertionError:  # nobody answers
            return []

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(network("blue", 10, domain="blue.example", name_servers=("ns1.example",))):

            async def answers() -> bool:
                return await dig("NS", "blue.example") == ["ns1.example."]

            await until(answers)
            copy = await asyncio.to_thread(hosts.run, "a", "dig", "AXFR", "blue.example", "@192.0.2.1")
            assert copy.count("SOA") == 2, "a secondary server is given the whole zone"

            await change_spec(services, "blue", name_servers=("ns2.example",))

            async def changed() -> bool:
                return await dig("NS", "blue.example") == ["ns2.example."]

            await until(changed, AT_ONCE_S)
            await change_spec(services, "blue", domain="green.example")

            async def renamed() -> bool:
                return await dig("NS", "green.example") == ["ns2.example."] and not await dig("NS", "blue.example")

            await until(renamed, AT_ONCE_S)

            (pid,) = hosts.run("a", "pgrep", "-x", "pdns_server", "--ns", str(os.getpid()), "--nslist", "net").split()
            os.kill(int(pid), signal.SIGKILL)

            async def told() -> bool:
                return "name-server-failed" in services.codes()

            await until(told)
            await until(renamed)

            async def ended() -> bool:
                return "name-server-failed" not in services.codes()

            await until(ended)

    with hosts.inside("a"):
        asyncio.run(story())


def test_a_name_server_that_is_not_installed_is_a_fault_that_names_it(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")

    async def story() -> None:
        services = Services(tmp_path, public)
        names = service_ports(tmp_path / "other", public / "other", services.clock, pdns="/opt/no/pdns_server").names
        services.services._ports = dataclasses.replace(services.ports, names=names)
        async with services.serving(network("blue", 10)):

            async def told() -> bool:
                why = services.codes().get("name-server-failed", {}).get("why")
                return bool(why == "/opt/no/pdns_server is not installed")

            await until(told)
            assert set(services.codes()) == {"name-server-failed"}, "DHCP is served"

    with hosts.inside("a"):
        asyncio.run(story())


def test_a_rule_that_nft_refuses_is_named_and_the_former_rules_stay(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    good = FirewallRule(name="web", direction="in", rule="tcp dport 80 accept")
    wrong = FirewallRule(name="shell", direction="in", rule="tcp dport ssssh accept")
    new = FirewallRule(name="mail", direction="in", rule="tcp dport 25 accept")

    def rules() -> str:
        return hosts.run("a", "nft", "list", "ruleset")

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(network("blue", 10, rules=(good,)), network("red", 20)):

            async def loaded() -> bool:
                return "tcp dport 80 accept" in await asyncio.to_thread(rules)

            await until(loaded)
            await change_spec(services, "blue", rules=(new, wrong))
            await change_spec(services, "red", rules=(new,))

            async def told() -> bool:
                fault = services.codes().get("firewall-refused", {})
                return fault.get("networks") == "blue" and "rule 'shell'" in fault["why"]

            await until(told)

            async def others() -> bool:
                text = await asyncio.to_thread(rules)
                return text.count("tcp dport 25 accept") == 1 and "tcp dport 80 accept" in text

            await until(others)
            await change_spec(services, "blue", rules=(new,))

            async def mended() -> bool:
                text = await asyncio.to_thread(rules)
                return text.count("tcp dport 25 accept") == 2 and "firewall-refused" not in services.codes()

            await until(mended)

    with hosts.inside("a"):
        asyncio.run(story())


def test_a_range_that_a_real_server_has_given_away_is_told(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
    hosts.guest("g1", "vmbr10")
    only = Subnet(cidr="10.10.0.0/24", gateway="10.10.0.1", dhcp=DhcpRange(start="10.10.0.100", end="10.10.0.100"))

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(network("blue", 10, subnets=(only,))):
            assert await asyncio.to_thread(hosts.lease, "g1", tmp_path) == "10.10.0.100"

            async def told() -> bool:
                fault = services.codes().get("dhcp-range-full", {})
                return bool(fault.get("networks") == "blue" and "10.10.0.100" in fault["why"])

            await until(told)

    with hosts.inside("a"):
        asyncio.run(story())
