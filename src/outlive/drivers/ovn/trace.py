"""Runs ``ovn-trace`` (``network.ports.PacketTracer``)."""

from __future__ import annotations

from typing import Final

from outlive.base import Refused, Unavailable
from outlive.drivers.commands import run

PROGRAM: Final = "ovn-trace"
LIMIT_S: Final = 20.0
"""How long one packet may take; the program reads all logical flows first."""
OUTPUT_BYTES: Final = 4 << 20
MESSAGE_CHARACTERS: Final = 300


class OvnTracer:
    """See the protocol. ``southbound``: as the settings name it; further words are options of the program.

    Friendly names are those that it cuts: of a port that is called like a UUID, it would print six digits.
    """

    def __init__(self, southbound: str, *options: str, program: str = PROGRAM) -> None:
        self._argv = (program, f"--db={southbound}", "--no-friendly-names", *options)

    async def trace(self, switch: str, flow: str) -> str:
        """See the protocol."""
        ended = await run([*self._argv, switch, flow], limit_s=LIMIT_S, output_bytes=OUTPUT_BYTES)
        if ended.killed:
            raise Unavailable(f"{PROGRAM} has not ended within {LIMIT_S:g} s", remedy="does the southbound answer?")
        if ended.code != 0 or "ingress(" not in ended.out:
            words = " ".join((ended.err or ended.out).split())[-MESSAGE_CHARACTERS:]
            raise Refused(
                f"{PROGRAM} does not follow the packet on {switch}: {words}",
                remedy="see outlive network check: OVN may lack the switch or the port",
            )
        return ended.out
