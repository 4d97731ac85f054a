"""Sends frames into interfaces of this machine (``network.ports.Announcer``), by a raw socket.

What is sent and when is decided elsewhere. A frame that the kernel has no room for is left out: the schedule repeats
all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from outlive.base import BadInput, Clock, get_logger
from outlive.drivers.frames import send_frames

FRAMES_LIMIT: Final = 4096
"""Frames of one announcement."""
TIMES_LIMIT: Final = 16
"""Times of one schedule."""
_ADDRESSES: Final = 12
"""Bytes of both addresses of a frame, behind which a VLAN's tag lies."""
_SMALLEST: Final = 14
_VLAN: Final = 0x8100
_log = get_logger("ovn")


class PacketAnnouncer:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def send(
        self, interface: str, frames: Sequence[bytes], schedule_ms: Sequence[int], *, vlan: int | None = None
    ) -> int:
        """See ``Announcer``. ``BadInput`` for what is no frame or no schedule."""
        if len(frames) > FRAMES_LIMIT or len(schedule_ms) > TIMES_LIMIT or any(one < 0 for one in schedule_ms):
            raise BadInput(
                f"{len(frames)} frames at {len(schedule_ms)} times are no announcement",
                remedy=f"at most {FRAMES_LIMIT} frames and {TIMES_LIMIT} times from 0 on",
            )
        tagged = [tag_frame(one, vlan) for one in frames]
        begin_s, sent = self._clock.monotonic(), 0
        for at_ms in sorted(schedule_ms):
            await self._clock.sleep(max(0.0, begin_s + at_ms / 1000 - self._clock.monotonic()))
            sent += send_frames(interface, tagged)
        _log.info("ovn.announced", interface=interface, frames=len(frames), sent=sent)
        return sent


def tag_frame(frame: bytes, vlan: int | None) -> bytes:
    """The frame with the tag of a VLAN; ``BadInput`` for one that is too short, or no VLAN."""
    if len(frame) < _SMALLEST:
        raise BadInput(f"{len(frame)} bytes are no Ethernet frame", remedy="see who wrote the announcement")
    if vlan is None:
        return frame
    if not 1 <= vlan <= 4094:
        raise BadInput(f"{vlan} is no VLAN", remedy="a tag is 1 to 4094")
    return frame[:_ADDRESSES] + struct.pack("!HH", _VLAN, vlan) + frame[_ADDRESSES:]
