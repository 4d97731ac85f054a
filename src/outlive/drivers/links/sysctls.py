"""Settings of the kernel, as files of ``/proc/sys``; those of the network are of the calling thread's namespace."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

SYSCTLS: Final = Path("/proc/sys")


def read_sysctls(names: Collection[str]) -> dict[str, str]:
    """Name → value, of those that the kernel has."""
    found = {}
    for name in names:
        try:
            found[name] = _file_of(name).read_text().strip()
        except OSError:
            continue
    return found


def write_sysctl(name: str, value: str) -> None:
    """Set it; ``OSError``. A kernel without IPv6 has none of its settings, which is fine."""
    if name.startswith("net.ipv6.") and not (SYSCTLS / "net/ipv6").exists():
        return
    _file_of(name).write_text(value)


def _file_of(name: str) -> Path:
    """The device in ``net.ipv4.conf.<device>.…`` may have dots itself, so only those around it are separators."""
    parts = name.split(".")
    if parts[0] == "net" and parts[2:3] == ["conf"] and len(parts) > 5:
        parts = [*parts[:3], ".".join(parts[3:-1]), parts[-1]]
    return SYSCTLS.joinpath(*parts)
