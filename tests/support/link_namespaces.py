"""Network namespaces for drivers of devices: two ends of a cable, and who listens at the other one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

from outlive.base import SystemClock
from outlive.drivers.links import KernelLinks, Netlink
from tests.support.guards import until

LISTEN = r"""
import signal, socket, struct, sys
SO_TIMESTAMPNS = 35
signal.alarm(60)
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
link.bind((sys.argv[1], 0))
print("ready", flush=True)
while True:
    frame, [(_, _, stamp)], _, _ = link.recvmsg(2048, 64)
    if frame[12:14] == b"\x08\x06" or frame[12:14] == b"\x86\xdd" and frame[54] == 136:
        seconds, nanoseconds = struct.unpack("qq", stamp)
        print(seconds + nanoseconds / 1e9, frame.hex(), flush=True)
"""
"""Prints frames with the times of their arrival, as the kernel knows them; ends by itself."""


def inside(space: str, *command: str) -> str:
    """What a command prints in a namespace."""
    return subprocess.run(
        ["ip", "netns", "exec", space, *command], check=True, capture_output=True, text=True, timeout=20
    ).stdout


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Have them, without IPv6 addresses that the kernel makes by itself, and remove them."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "add", name], check=True)
        inside(name, "sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1")
        inside(name, "ip", "link", "set", "lo", "up")
    try:
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)


def cable(one: str, device: str, other: str, peer: str) -> None:
    """A cable between devices of two namespaces, up at both ends."""
    subprocess.run(
        ["ip", "-n", one, "link", "add", device, "type", "veth", "peer", "name", peer, "netns", other], check=True
    )
    inside(one, "ip", "link", "set", device, "up")
    inside(other, "ip", "link", "set", peer, "up")
    ends = ((one, device), (other, peer))
    # a moment later: until then the kernel drops what is sent
    until(lambda: all("state UP" in inside(space, "ip", "link", "show", end) for space, end in ends), "a cable is up")


@contextlib.asynccontextmanager
async def links_in(space: str) -> AsyncIterator[KernelLinks]:
    """The driver of a namespace."""
    driver = KernelLinks(SystemClock(), Netlink(f"/run/netns/{space}"))
    try:
        yield driver
    finally:
        await driver.close()


@contextlib.contextmanager
def listening(space: str, device: str, frames: int) -> Iterator[list[tuple[float, bytes]]]:
    """After the block, the first frames of ARP and neighbour advertisements that arrived at a device, with times."""
    found: list[tuple[float, bytes]] = []
    command = ["ip", "netns", "exec", space, sys.executable, "-c", LISTEN, device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield found
            while len(found) < frames and (line := child.stdout.readline()):
                at, raw = line.split()
                found.append((float(at), bytes.fromhex(raw)))
            assert len(found) == frames, f"only {len(found)} frames arrived"
        finally:
            child.kill()
