"""What the guests of this host use: one question to libvirt for all of them, which waits for none that is busy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import libvirt

from outlive.node.vm import GuestCounts

COUNTED_LIMIT: Final = 256
"""Disks, and interfaces, of one domain that are read."""
WANTED: Final = (
    libvirt.VIR_DOMAIN_STATS_STATE
    | libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
    | libvirt.VIR_DOMAIN_STATS_BALLOON
    | libvirt.VIR_DOMAIN_STATS_INTERFACE
    | libvirt.VIR_DOMAIN_STATS_BLOCK
)
FLAGS: Final = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT


def read(connection: libvirt.virConnect) -> tuple[GuestCounts, ...]:
    """Of all domains that run, in the order of their names. Raises libvirtError."""
    found = connection.getAllDomainStats(WANTED, FLAGS)
    return tuple(sorted((parse_counts(domain.name(), counts) for domain, counts in found), key=lambda one: one.vm))


def parse_counts(vm: str, counts: Mapping[str, Any]) -> GuestCounts:
    """Of one domain, from what libvirt counts under its dotted names; what it does not say is 0."""
    return GuestCounts(
        vm=vm,
        cpu_s=_get_count(counts, "cpu.time") / 1e9,
        resident_bytes=_get_count(counts, "balloon.rss") * 1024,
        read_bytes=_sum_counts(counts, "block", "rd.bytes"),
        written_bytes=_sum_counts(counts, "block", "wr.bytes"),
        received_bytes=_sum_counts(counts, "net", "rx.bytes"),
        sent_bytes=_sum_counts(counts, "net", "tx.bytes"),
    )


def _sum_counts(counts: Mapping[str, Any], group: str, name: str) -> int:
    members = range(min(_get_count(counts, f"{group}.count"), COUNTED_LIMIT))
    return sum(_get_count(counts, f"{group}.{index}.{name}") for index in members)


def _get_count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0
