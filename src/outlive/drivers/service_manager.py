"""The service manager that a daemon runs under: it is notified when the daemon is ready, and asked whether the machine
goes down. Where there is no systemd, nobody is notified, and the machine counts as staying up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Final

ASK_LIMIT_S: Final = 2.0
"""How long it may take to say whether the machine goes down."""
BOOTED: Final = Path("/run/systemd/system")
"""There where the machine was booted with systemd."""


def notify(**said: str) -> None:
    """Say ``READY=1`` and the like (``sd_notify``); nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    text = "\n".join(f"{name}={value}" for name, value in said.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way:
        way.connect("\0" + address[1:] if address.startswith("@") else address)
        way.sendall(text.encode())


async def is_machine_stopping() -> bool:
    """Whether the whole machine is being stopped; ``False`` where that cannot be known."""
    if not BOOTED.is_dir():
        return False
    try:
        child = await asyncio.create_subprocess_exec(
            "systemctl",
            "is-system-running",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(ASK_LIMIT_S):
            answer, _ = await child.communicate()
    except TimeoutError:
        return False
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return answer.strip() == b"stopping"
