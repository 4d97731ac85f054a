"""Guests move on real OVN under pings of 10 ms and a TCP stream: how long they are not heard, by the kind of network.

The control is a guest whose port nobody programs: OVN lets whichever chassis has plugged it last have it. What the
hypervisor's own pause takes is seen on the guest's console. Guests are emulated, and pauses differ much from move to
move, so medians count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from lab.network import NetworkLab, Pause, Pings, Stream, guest_interface, guest_mac, started

from bench.figures import Figure

MOVES = 6
TYPES = ("layer2", "localnet", "routed")
CONTROL = "control"
CONTROL_ADDRESS = "192.168.40.250"


class Heard(NamedTuple):
    """One move."""

    silence_ms: float
    pause_ms: float
    stall_ms: float
    reset: bool


def measure() -> list[Figure]:
    """The part's figures."""
    with tempfile.TemporaryDirectory() as folder:
        for lab in started(Path(folder)):
            for network in TYPES:
                lab.make_guest(network, network, "host-1")
            _make_control(lab)
            for network in (*TYPES, CONTROL):
                address = lab.await_guest(network)
                lab.warm_up(network if network in TYPES else "layer2", address)
            heard = {name: [_moved(lab, name, number) for number in range(MOVES)] for name in (*TYPES, CONTROL)}
            restart_s, answer_s = _power_loss(lab)
            return [*_figures(heard), Figure("power loss: address to first answer", answer_s - restart_s, "s", 1.0)]
    raise AssertionError("the laboratory has started")


def _make_control(lab: NetworkLab) -> None:
    """A guest on the layer2 network with a port that was made by hand."""
    assert lab.ovn is not None
    interface, mac = guest_interface(CONTROL), guest_mac(CONTROL)
    lab.ovn.nbctl("lsp-add", "layer2_ovn_layer2_switch", interface)
    lab.ovn.nbctl("lsp-set-addresses", interface, f"{mac} {CONTROL_ADDRESS}")
    options = 'lease_time=3600,server_id="192.168.40.1",server_mac="0a:58:a9:fe:01:01",mtu=1342'
    made = lab.ovn.nbctl("create", "DHCP_Options", "cidr=192.168.40.0/24", f"options={{{options}}}")
    lab.ovn.nbctl("lsp-set-dhcpv4-options", interface, made.strip())
    lab.make_guest(CONTROL, "layer2", "host-1", port=False)


def _moved(lab: NetworkLab, name: str, number: int) -> Heard:
    network = name if name in TYPES else "layer2"
    address = CONTROL_ADDRESS if name == CONTROL else str(lab.port(name)["status"]["addresses"][0]).partition("/")[0]
    target = ("host-2", "host-3", "host-1")[number % 3]
    peer = lab.peer(network)
    pause, pings, stream = Pause(lab.console(name)), Pings(peer, address), Stream(peer, address)
    time.sleep(1.0)
    if why := lab.move(name, target):
        raise RuntimeError(f"{name} did not move to {target}: {why}")
    time.sleep(1.5)
    why_ended, stall_ms = stream.stop()
    silence = pings.stop()
    found = Heard(silence.longest_ms, pause.stop(), stall_ms, bool(why_ended))
    print(f"{name} to {target}: {found}, {silence}", file=sys.stderr)
    return found


def _power_loss(lab: NetworkLab) -> tuple[float, float]:
    """Seconds until the guest of a host without power has its address elsewhere, and until it is heard there."""
    host = lab.host(lab.host_of("layer2"))
    size, address = lab.console("layer2").stat().st_size, lab.port("layer2")["status"]["addresses"][0]
    began = time.monotonic()
    host.power_off()
    lab.await_guest("layer2", after=size, limit_s=120)
    restart_s = time.monotonic() - began
    lab.warm_up("layer2", str(address).partition("/")[0])
    return restart_s, time.monotonic() - began


def _figures(heard: dict[str, list[Heard]]) -> list[Figure]:
    control = statistics.median(one.silence_ms for one in heard[CONTROL])
    figures = [Figure("control: silence, median", control, "ms")]
    for name in TYPES:
        moves = heard[name]
        silence = statistics.median(one.silence_ms for one in moves)
        beyond = statistics.median(one.silence_ms - one.pause_ms for one in moves)
        figures += [
            Figure(f"{name}: silence, median", silence, "ms", control),
            Figure(
                f"{name}: silence beyond the guest's own pause, median", beyond, "ms", 100 if name == "routed" else 50
            ),
            Figure(f"{name}: TCP stall, longest", max(one.stall_ms for one in moves), "ms", 1000),
            Figure(f"{name}: TCP connections lost", sum(one.reset for one in moves), "", 0),
        ]
    return figures
