"""Bridges of this host, as its kernel knows them."""

from __future__ import annotations

import socket


def device_number(device: str) -> int:
    """Return the kernel's number of a device; 0: there is none."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0
