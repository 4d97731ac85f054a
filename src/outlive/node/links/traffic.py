"""What the host's cards receive and send: one look a second, and rates over the last interval."""

from __future__ import annotations

from collections import deque
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.ports.links import LinkPort, LinkTraffic
from outlive.resources.hosts import InterfaceRates

LOOK_S: Final = 1.0
INTERVAL: Final = 30
"""Looks over which rates are taken."""
CARDS_LIMIT: Final = 256
_log = get_logger("links")
Sample = tuple[float, LinkTraffic]


class TrafficMeter:
    """See the module. A card that was counted once has no rates yet."""

    def __init__(self, port: LinkPort, clock: Clock, interval: int = INTERVAL) -> None:
        self._port = port
        self._clock = clock
        self._interval = interval
        self._samples: dict[str, deque[Sample]] = {}

    async def run(self) -> None:
        """Until cancelled; then nothing is known any more."""
        try:
            while True:
                await self.count_once()
                await self._clock.sleep(LOOK_S)
        finally:
            self._samples.clear()

    async def count_once(self) -> None:
        """Count once."""
        try:
            found = await self._port.traffic()
        except OutliveError as error:
            _log.warning("links.not_counted", why=str(error))
            return
        now_s, cards = self._clock.monotonic(), {one.name: one for one in found[:CARDS_LIMIT]}
        self._samples = {name: ring for name, ring in self._samples.items() if name in cards}
        for name, card in cards.items():
            self._samples.setdefault(name, deque(maxlen=self._interval + 1)).append((now_s, card))

    def rates(self) -> dict[str, InterfaceRates]:
        """Of each card that was counted twice."""
        return {name: rates_between(ring[0], ring[-1]) for name, ring in self._samples.items() if len(ring) > 1}


def rates_between(first: Sample, last: Sample) -> InterfaceRates:
    """What passed each second. A counter that went back began anew, and counts as nothing."""
    (began_s, old), (ended_s, new) = first, last
    passed_s = max(ended_s - began_s, 1e-9)

    def rate(before: int, after: int, size: int = 1) -> int:
        return round(max(0, after - before) * size / passed_s)

    received_bits, sent_bits = rate(old.rx_bytes, new.rx_bytes, 8), rate(old.tx_bytes, new.tx_bytes, 8)
    received_packets, sent_packets = rate(old.rx_packets, new.rx_packets), rate(old.tx_packets, new.tx_packets)
    return InterfaceRates(
        received_bits=received_bits,
        received_packets=received_packets,
        sent_bits=sent_bits,
        sent_packets=sent_packets,
        total_bits=received_bits + sent_bits,
        total_packets=received_packets + sent_packets,
        speed_mbps=new.speed_mbps,
        state=new.state,
    )
