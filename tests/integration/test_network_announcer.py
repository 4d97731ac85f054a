"""Frames and neighbour entries on real interfaces, in a network namespace of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.loops import run_real

from outlive.base import BadInput, SystemClock, Unavailable
from outlive.drivers.ovn import BridgeNeighbours, PacketAnnouncer, tag_frame
from outlive.network import RESUME_SCHEDULE_MS, EvpnNetwork, RarpFrame, announce_address, encode_frame

NAMESPACE = f"outlive-announce-{os.getpid()}"
MAC, ADDRESS = "0a:58:c0:a8:28:09", "192.168.40.9"
LISTEN = """
import socket, sys
SO_TIMESTAMPNS = 35
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
link.bind(("vb", 0))
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    frame, told, _, _ = link.recvmsg(2048, 64)
    print(int.from_bytes(told[0][2][:8], "little"), int.from_bytes(told[0][2][8:16], "little"), frame.hex(), flush=True)
"""
"""Prints when the kernel took each frame in (seconds and nanoseconds since 1970), and the frame."""


def ip(*arguments: str) -> str:
    command = ["ip", "netns", "exec", NAMESPACE, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    subprocess.run(["ip", "netns", "del", NAMESPACE], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    ip("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
    ip("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")
    for name in ("va", "vb"):
        ip("ip", "link", "set", name, "up")
    yield NAMESPACE
    subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


SEND = """
import asyncio, sys, time
from outlive.base.clock import SystemClock
from outlive.drivers.ovn.announcer import PacketAnnouncer
frames = [bytes.fromhex(one) for one in sys.argv[2].split(",")]
vlan = int(sys.argv[1]) or None
schedule = [int(one) for one in sys.argv[3].split(",")]
async def send():
    print(time.time())
    print(await PacketAnnouncer(SystemClock()).send("va", frames, schedule, vlan=vlan))
asyncio.run(send())
"""
"""Prints when it begins, and how many frames were sent."""


@pytest.mark.component("ovn")
@pytest.mark.slow
def test_frames_arrive_on_the_other_end_in_their_order_and_at_their_times(namespace: str) -> None:
    frames = [encode_frame(one) for one in (*announce_address(ADDRESS, MAC), RarpFrame(mac=MAC))]
    total = len(frames) * len(RESUME_SCHEDULE_MS)
    inside = ["ip", "netns", "exec", namespace, sys.executable, "-c"]
    with subprocess.Popen([*inside, LISTEN, str(total)], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        hexes, schedule = ",".join(one.hex() for one in frames), ",".join(map(str, RESUME_SCHEDULE_MS))
        sent = subprocess.run([*inside, SEND, "0", hexes, schedule], check=True, capture_output=True, text=True)
        seen = [listener.stdout.readline().split() for _ in range(total)]
    begun, *_, count = sent.stdout.splitlines()  # between them it logs
    assert count == str(total)
    assert [one for _, _, one in seen] == [one.hex() for one in frames] * len(RESUME_SCHEDULE_MS)
    times_s = [int(whole) + int(part) / 1e9 for whole, part, _ in seen[:: len(frames)]]
    after_ms = [1000 * (at - float(begun)) for at in times_s]
    assert all(at >= due - 1 for at, due in zip(after_ms, RESUME_SCHEDULE_MS, strict=True)), after_ms


@pytest.mark.component("ovn")
def test_a_tag_of_a_vlan_goes_along(namespace: str) -> None:
    frame = encode_frame(RarpFrame(mac=MAC))
    inside = ["ip", "netns", "exec", namespace, sys.executable, "-c"]
    with subprocess.Popen([*inside, LISTEN, "1"], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        subprocess.run([*inside, SEND, "7", frame.hex(), "0"], check=True, capture_output=True)
        seen = bytes.fromhex(listener.stdout.readline().split()[-1])
    assert seen in (frame, encode_frame(RarpFrame(mac=MAC), vlan=7)), "the kernel may keep the tag beside the frame"


def test_an_interface_that_is_not_there_and_nonsense_are_refused() -> None:
    announcer = PacketAnnouncer(SystemClock())
    frame = encode_frame(RarpFrame(mac=MAC))
    assert tag_frame(frame, 7) == encode_frame(RarpFrame(mac=MAC), vlan=7)
    for frames, schedule, vlan in (([b"short"], (0,), None), ([frame], (-1,), None), ([frame], (0,), 4095)):
        with pytest.raises(BadInput):
            run_real(announcer.send("lo", frames, schedule, vlan=vlan))
    with pytest.raises(Unavailable):
        run_real(announcer.send("no-such-link", [frame], (0,)))


@pytest.mark.component("ovn")
def test_neighbours_are_told_and_withdrawn_and_those_of_the_fabric_stay(namespace: str) -> None:
    ip("ip", "link", "add", "br0", "type", "bridge")
    ip("ip", "link", "add", "vx", "type", "vxlan", "id", "10", "dstport", "4789", "local", "127.0.0.1", "nolearning")
    for name in ("vx", "va"):
        ip("ip", "link", "set", name, "master", "br0")
    for name in ("vx", "br0"):
        ip("ip", "link", "set", name, "up")
    ip("ip", "addr", "add", "192.168.40.1/24", "dev", "br0")
    table = BridgeNeighbours(
        {"green": EvpnNetwork(port="va", gateway_interface="br0")}, prefix=("ip", "netns", "exec", namespace)
    )

    def neighbour(address: str) -> dict[str, object] | None:
        found = json.loads(ip("ip", "-json", "neigh", "show", address, "dev", "br0"))
        return found[0] if found else None

    def forwarding(port: str, mac: str) -> list[dict[str, object]]:
        found = json.loads(ip("bridge", "-json", "fdb", "show", "dev", port))
        return [one for one in found if one["mac"] == mac and "master" in one]

    for _ in range(2):
        run_real(table.ensure("green", MAC, [ADDRESS]))
    assert [one["state"] for one in forwarding("va", MAC)] == ["static"]
    assert (neighbour(ADDRESS) or {})["state"] == ["PERMANENT"]

    # the VM has left: the fabric tells of it
    ip("bridge", "fdb", "replace", MAC, "dev", "vx", "master", "extern_learn")
    ip("ip", "neigh", "replace", ADDRESS, "lladdr", MAC, "dev", "br0", "nud", "reachable", "extern_learn")
    run_real(table.delete("green", MAC, [ADDRESS]))
    assert forwarding("vx", MAC)
    assert neighbour(ADDRESS) is not None

    # it is back
    run_real(table.ensure("green", MAC, [ADDRESS]))
    assert forwarding("vx", MAC) == []
    assert [one["state"] for one in forwarding("va", MAC)] == ["static"]
    assert (neighbour(ADDRESS) or {})["state"] == ["PERMANENT"]
    for _ in range(2):
        run_real(table.delete("green", MAC, [ADDRESS]))
    assert forwarding("va", MAC) == []
    assert neighbour(ADDRESS) is None
    with pytest.raises(BadInput):
        run_real(table.ensure("blue", MAC, [ADDRESS]))
