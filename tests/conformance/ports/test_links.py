"""What ``LinkPort`` promises, on the kernel's own devices in namespaces of their own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.support.link_namespaces import cable, inside, links_in, listening, namespaces
from tests.support.loops import run_real

from outlive.base import BadInput, NotFound, OutliveError, SystemClock, Unknown
from outlive.drivers.links import KernelLinks, Netlink
from outlive.node.ports import HostLink, LinkOp

pytestmark = pytest.mark.component("links")
HOST, OTHER = f"outlive-la-{os.getpid()}", f"outlive-lb-{os.getpid()}"


@pytest.fixture(autouse=True)
def spaces() -> Iterator[None]:
    with namespaces(HOST, OTHER):
        cable(HOST, "eth0", OTHER, "eth9")
        yield


def real(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test as a function that runs it on a real loop."""

    def test() -> None:
        run_real(story())

    return test


def mac_of(space: str, device: str) -> bytes:
    text = inside(space, "cat", f"/sys/class/net/{device}/address").strip()
    return bytes.fromhex(text.replace(":", ""))


@real
async def test_an_address_is_announced_twice_in_the_foreground() -> None:
    async with links_in(HOST) as links:
        with listening(OTHER, "eth9", 2) as frames:
            await links.add_address("eth0", "10.7.0.9/24")
            assert await links.list_addresses("eth0") == ("10.7.0.9/24",)
        mac = mac_of(HOST, "eth0")
        address = socket.inet_aton("10.7.0.9")
        for _, frame in frames:
            assert frame[:14] == b"\xff" * 6 + mac + b"\x08\x06"
            assert frame[20:22] == b"\x00\x02", "a reply that nobody asked for"
            assert frame[22:42] == mac + address + b"\xff" * 6 + address
        assert frames[1][0] - frames[0][0] >= 0.015


@real
async def test_an_ipv6_address_is_used_at_once_and_overrides_what_neighbours_cache() -> None:
    async with links_in(HOST) as links:
        inside(OTHER, "sysctl", "-qw", "net.ipv6.conf.eth9.disable_ipv6=1")
        with listening(OTHER, "eth9", 2) as frames:
            await links.add_address("eth0", "fd00:7::9/64")
        assert await links.list_addresses("eth0") == ("fd00:7::9/64",)
        assert "tentative" not in inside(HOST, "ip", "addr", "show", "dev", "eth0")
        mac = mac_of(HOST, "eth0")
        for _, frame in frames:
            assert frame[:6] == bytes.fromhex("333300000001")
            assert frame[54] == 136
            assert frame[58] & 0x20, "the override flag"
            assert frame[62:78] == socket.inet_pton(socket.AF_INET6, "fd00:7::9")
            assert frame[78:86] == b"\x02\x01" + mac


@real
async def test_adding_twice_and_removing_twice_are_fine() -> None:
    async with links_in(HOST) as links:
        for _ in range(2):
            await links.add_address("eth0", "10.7.0.9/24")
        for _ in range(2):
            await links.remove_address("eth0", "10.7.0.9/24")
        assert await links.list_addresses("eth0") == ()
        await links.remove_address("nothing0", "10.7.0.9/24")
        assert await links.list_addresses("nothing0") == ()


@real
async def test_other_addresses_of_the_subnet_stay_when_the_first_one_goes() -> None:
    async with links_in(HOST) as links:
        await links.add_address("eth0", "10.7.0.9/24")
        await links.add_address("eth0", "10.7.0.1/24")
        await links.remove_address("eth0", "10.7.0.9/24")
        assert await links.list_addresses("eth0") == ("10.7.0.1/24",)


@real
async def test_errors_name_what_was_to_be_done() -> None:
    async with links_in(HOST) as links:
        with pytest.raises(NotFound, match="cannot be added to nothing0"):
            await links.add_address("nothing0", "10.7.0.9/24")
        with pytest.raises(BadInput, match=r"'10\.7\.0\.999/24' is no address"):
            await links.add_address("eth0", "10.7.0.999/24")
        with pytest.raises(OutliveError, match="mtu eth0 12: Invalid argument"):
            await links.carry_out(LinkOp(op="mtu", device="eth0", value="12"))


MADE = (
    LinkOp(op="create", device="br9", kind="bridge", alias="outlive:blue"),
    LinkOp(op="create", device="vxlan9", kind="vxlan", lower="eth0", vni=9, port=4789, local="10.7.0.1"),
    LinkOp(op="mtu", device="vxlan9", value="1400"),
    LinkOp(op="mtu", device="br9", value="1400"),
    LinkOp(op="attach", device="vxlan9", value="br9"),
    LinkOp(op="addRemote", device="vxlan9", value="10.7.0.2"),
    LinkOp(op="addRemote", device="vxlan9", value="10.7.0.3"),
    LinkOp(op="noChecksum", device="br9"),
    LinkOp(op="up", device="vxlan9"),
    LinkOp(op="up", device="br9"),
    LinkOp(op="addAddress", device="eth0", value="10.7.0.1/24"),
    LinkOp(op="addRoute", device="eth0", value="10.7.0.254"),
    LinkOp(op="addRoute", device="eth0", value="10.7.0.253", key="10.8.0.0/16"),
    LinkOp(op="sysctl", key="net.ipv6.conf.br9.disable_ipv6", value="1"),
)


@real
async def test_what_is_carried_out_is_found_again_and_may_be_repeated() -> None:
    async with links_in(HOST) as links:
        for _ in range(2):
            for op in MADE:
                await links.carry_out(op)
        found = await links.read(("net.ipv6.conf.br9.disable_ipv6", "net.ipv6.conf.br9.no_such"))
        bridge, tunnel = found.find_link("br9"), found.find_link("vxlan9")
        assert bridge is not None
        assert tunnel is not None
        wanted = HostLink(name="br9", kind="bridge", mtu=1400, up=True, mac=bridge.mac, alias="outlive:blue")
        assert bridge == wanted
        assert (tunnel.kind, tunnel.vni, tunnel.port, tunnel.local) == ("vxlan", 9, 4789, "10.7.0.1")
        assert (tunnel.lower, tunnel.bridge, tunnel.mtu, tunnel.up) == ("eth0", "br9", 1400, True)
        assert tunnel.remotes == ("10.7.0.2", "10.7.0.3")
        assert {(one.gateway, one.device, one.to) for one in found.routes} == {
            ("10.7.0.254", "eth0", ""),
            ("10.7.0.253", "eth0", "10.8.0.0/16"),
        }
        assert found.sysctls == {"net.ipv6.conf.br9.disable_ipv6": "1"}

        for op in (
            LinkOp(op="removeRemote", device="vxlan9", value="10.7.0.3"),
            LinkOp(op="removeRoute", device="eth0", value="10.7.0.254"),
            LinkOp(op="removeRoute", device="eth0", value="10.7.0.253", key="10.8.0.0/16"),
            LinkOp(op="detach", device="vxlan9"),
            LinkOp(op="delete", device="br9"),
        ):
            for _ in range(2):
                await links.carry_out(op)
        found = await links.read()
        tunnel = found.find_link("vxlan9")
        assert tunnel is not None
        assert (tunnel.bridge, tunnel.remotes) == ("", ("10.7.0.2",))
        assert found.find_link("br9") is None
        assert found.routes == ()


@real
async def test_cards_are_counted() -> None:
    async with links_in(HOST) as links:
        before = {one.name: one for one in await links.read_traffic()}["eth0"]
        await links.add_address("eth0", "10.7.0.9/24")
        after = {one.name: one for one in await links.read_traffic()}["eth0"]
        assert after.tx_packets - before.tx_packets >= 2
        assert after.tx_bytes > before.tx_bytes
        assert after.state == "up"


@real
async def test_a_call_that_hangs_ends_in_time_and_the_next_one_is_served() -> None:
    netlink, release = Netlink(f"/run/netns/{HOST}"), threading.Event()
    links = KernelLinks(SystemClock(), netlink)
    with pytest.raises(Unknown, match="a change: the kernel has not answered within 4 s"):
        await netlink.ask(lambda _route: release.wait(30), "a change", is_change=True)
    assert await links.list_addresses("eth0") == ()
    release.set()
    await links.close()
