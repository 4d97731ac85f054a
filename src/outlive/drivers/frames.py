"""Sends Ethernet frames into interfaces of this machine, by a raw socket."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

from outlive.base import Unavailable

_FULL: Final = (errno.EAGAIN, errno.ENOBUFS)


def send_frames(interface: str, frames: Sequence[bytes]) -> int:
    """Send these frames into an interface now; how many of them the kernel took.

    The socket lives no longer than this: interfaces come and go.
    """
    sent = 0
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as opened:
            opened.setblocking(False)
            opened.bind((interface, 0))
            for frame in frames:
                try:
                    opened.send(frame)
                    sent += 1
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
    except OSError as error:
        remedy = "run it as root" if error.errno == errno.EPERM else "see whether the interface is there and up"
        raise Unavailable(f"nothing can be sent on {interface}: {error.strerror or error}", remedy=remedy) from None
    return sent
