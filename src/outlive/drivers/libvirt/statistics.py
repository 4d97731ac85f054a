"""What the guests of this host use: one question to libvirt for all of them, which waits for none that is busy.

Counters are of the present run of each domain; whoever wants rates takes two of them and the time between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import libvirt
import msgspec

COUNTED_LIMIT: Final = 256
"""Disks, and interfaces, of one domain that are read."""
WANTED: Final = (
    libvirt.VIR_DOMAIN_STATS_STATE
    | libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
    | libvirt.VIR_DOMAIN_STATS_BALLOON
    | libvirt.VIR_DOMAIN_STATS_VCPU
    | libvirt.VIR_DOMAIN_STATS_INTERFACE
    | libvirt.VIR_DOMAIN_STATS_BLOCK
)
FLAGS: Final = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT


class DiskStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One disk, by its name in the guest (``vda``)."""

    name: str
    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0
    read_s: float = 0.0
    """That reads took, all together."""
    write_s: float = 0.0
    size_bytes: int = 0


class InterfaceStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One interface, by its name on the host (``vnet0``)."""

    name: str
    received_bytes: int = 0
    sent_bytes: int = 0
    received_packets: int = 0
    sent_packets: int = 0
    errors: int = 0
    dropped: int = 0


class DomainStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One domain that runs."""

    vm: str
    cpu_s: float = 0.0
    """Processor time of its process."""
    vcpus: int = 0
    memory_bytes: int = 0
    """That the guest has."""
    resident_bytes: int = 0
    """That its process has of the host's memory."""
    disks: tuple[DiskStatistics, ...] = ()
    interfaces: tuple[InterfaceStatistics, ...] = ()


def read(connection: libvirt.virConnect) -> tuple[DomainStatistics, ...]:
    """Of all domains that run, in the order of their names. Raises libvirtError."""
    found = connection.getAllDomainStats(WANTED, FLAGS)
    return tuple(sorted((statistics(domain.name(), counts) for domain, counts in found), key=lambda one: one.vm))


def statistics(vm: str, counts: Mapping[str, Any]) -> DomainStatistics:
    """Of one domain, from what libvirt counts under its dotted names; what it does not say is 0."""
    return DomainStatistics(
        vm=vm,
        cpu_s=_number(counts, "cpu.time") / 1e9,
        vcpus=_number(counts, "vcpu.current"),
        memory_bytes=_number(counts, "balloon.current") * 1024,
        resident_bytes=_number(counts, "balloon.rss") * 1024,
        disks=tuple(_disk(counts, f"block.{index}.") for index in _indices(counts, "block")),
        interfaces=tuple(_interface(counts, f"net.{index}.") for index in _indices(counts, "net")),
    )


def _disk(counts: Mapping[str, Any], prefix: str) -> DiskStatistics:
    return DiskStatistics(
        name=str(counts.get(f"{prefix}name", "")),
        read_bytes=_number(counts, f"{prefix}rd.bytes"),
        written_bytes=_number(counts, f"{prefix}wr.bytes"),
        reads=_number(counts, f"{prefix}rd.reqs"),
        writes=_number(counts, f"{prefix}wr.reqs"),
        read_s=_number(counts, f"{prefix}rd.times") / 1e9,
        write_s=_number(counts, f"{prefix}wr.times") / 1e9,
        size_bytes=_number(counts, f"{prefix}capacity"),
    )


def _interface(counts: Mapping[str, Any], prefix: str) -> InterfaceStatistics:
    return InterfaceStatistics(
        name=str(counts.get(f"{prefix}name", "")),
        received_bytes=_number(counts, f"{prefix}rx.bytes"),
        sent_bytes=_number(counts, f"{prefix}tx.bytes"),
        received_packets=_number(counts, f"{prefix}rx.pkts"),
        sent_packets=_number(counts, f"{prefix}tx.pkts"),
        errors=_number(counts, f"{prefix}rx.errs") + _number(counts, f"{prefix}tx.errs"),
        dropped=_number(counts, f"{prefix}rx.drop") + _number(counts, f"{prefix}tx.drop"),
    )


def _indices(counts: Mapping[str, Any], group: str) -> range:
    return range(min(_number(counts, f"{group}.count"), COUNTED_LIMIT))


def _number(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0
