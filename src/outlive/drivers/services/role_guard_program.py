"""Takes back what only the primary coordinator has, when its daemon cannot: a process of its own.

It reads lines from its standard input: ``until SECONDS`` (of the clock that goes on while a machine sleeps), ``hold
DEVICE ADDRESS/LENGTH``, ``release DEVICE ADDRESS/LENGTH``, ``process PID STARTED``. It removes all addresses and kills
all process groups once that time has passed, and at once when the input ends: then the daemon is gone. A daemon that
was stopped, or hangs, gives no more time. It imports nothing of the product, so that nothing of it can hang here.

With a file as its argument it removes the addresses that a daemon has noted there, and ends: for a service manager that
has killed the daemon together with this process.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

RTM_DELADDR = 21
NLM_REQUEST_ACK = 5
IFA_ADDRESS, IFA_LOCAL = 1, 2
AGAIN_S = 1.0
"""How soon what could not be removed is tried again."""
GONE = (19, 99)
"""Errors that say that there is no such device or address."""


def remove_address(device: str, address: str) -> bool:
    """Remove an address; whether it is gone."""
    text, _, length = address.partition("/")
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    raw = socket.inet_pton(family, text)
    try:
        index = socket.if_nametoindex(device)
    except OSError:
        return True
    if family == socket.AF_INET:
        keep_other_addresses(device)
    attributes = b"".join(struct.pack("HH", 4 + len(raw), kind) + raw for kind in (IFA_LOCAL, IFA_ADDRESS))
    body = struct.pack("BBBBi", family, int(length or 8 * len(raw)), 0, 0, index) + attributes
    message = struct.pack("IHHII", 16 + len(body), RTM_DELADDR, NLM_REQUEST_ACK, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(1.0)
        netlink.bind((0, 0))
        netlink.send(message)
        answer = netlink.recv(4096)
    (error,) = struct.unpack("i", answer[16:20])
    return error == 0 or -error in GONE


def keep_other_addresses(device: str) -> None:
    """Have the other addresses of a subnet stay when the one goes that was there first."""
    with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv4/conf/{device}/promote_secondaries", "w") as setting:  # noqa: PTH123
        setting.write("1")


class RoleHoldings:
    """What the daemon has sent so far."""

    def __init__(self) -> None:
        self.until = 0.0
        self.addresses: dict[tuple[str, str], None] = {}
        self.processes: dict[int, str] = {}

    def read(self, line: str) -> None:
        """Take one line in."""
        match line.split():
            case ["until", seconds]:
                self.until = float(seconds)
            case ["hold", device, address]:
                self.addresses[device, address] = None
            case ["release", device, address]:
                self.addresses.pop((device, address), None)
            case ["process", pid, started]:
                self.processes = {one: begun for one, begun in self.processes.items() if started_at(one) == begun}
                self.processes[int(pid)] = started

    def release_all(self) -> None:
        """Addresses first: they are what two hosts must not have."""
        for device, address in list(self.addresses):
            with contextlib.suppress(OSError, ValueError, struct.error):
                if remove_address(device, address):
                    del self.addresses[device, address]
        for pid, started in self.processes.items():
            if started and started_at(pid) == started:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        self.processes = {}

    @property
    def has_something(self) -> bool:
        """Whether there is anything to take back."""
        return bool(self.addresses or self.processes)


def started_at(pid: int) -> str:
    """When a process was started; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def read_notes(file: str) -> dict[tuple[str, str], None]:
    """What a daemon has noted; nothing where there is no such file, or it cannot be understood."""
    try:
        with open(file, "rb") as notes:  # noqa: PTH123
            return {(str(device), str(address)): None for device, address in json.load(notes)}
    except (OSError, ValueError, TypeError):
        return {}


def take_back_all(guard: RoleHoldings) -> int:
    """Remove everything, again and again; 1 where something is left after half a minute."""
    for _ in range(30):
        guard.release_all()
        if not guard.has_something:
            return 0
        time.sleep(AGAIN_S)
    return 1


def main(arguments: list[str]) -> int:
    """Until the input ends and nothing is left; with a file, until what is noted there is gone."""
    if arguments:
        noted = RoleHoldings()
        noted.addresses = read_notes(arguments[0])
        return take_back_all(noted)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon ends it by closing its input
    guard, pending = RoleHoldings(), b""
    while True:
        left = guard.until - time.clock_gettime(time.CLOCK_BOOTTIME)
        # A machine that sleeps stops the time of select alone, so that no wait is long while there is something.
        wait = min(max(0.0, left) or AGAIN_S, AGAIN_S) if guard.has_something else 60.0
        readable, _, _ = select.select([0], [], [], wait)
        if readable:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    guard.read(line.decode(errors="replace"))
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= guard.until:
            guard.release_all()
    return take_back_all(guard)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
