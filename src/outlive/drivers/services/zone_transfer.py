"""Reads a whole zone from another name server over TCP (AXFR)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
from collections.abc import Iterator
from typing import Final

from outlive.base import Unavailable, deadline
from outlive.node.services import ZoneRecord

TRANSFER_S: Final = 5.0
RECORDS_MOST: Final = 100_000
MESSAGES_MOST: Final = 10_000
AXFR: Final = 252
SOA: Final = 6
_NAMES: Final = {2: "NS", 5: "CNAME", 12: "PTR"}
"""Types whose content is one name."""
_POINTERS_MOST: Final = 64


async def transfer_zone(zone: str, server: str, port: int = 53) -> list[ZoneRecord]:
    """Return the records of a zone, without its SOA. ``Unavailable`` where the server does not give all of them."""
    writer: asyncio.StreamWriter | None = None
    try:
        with deadline(TRANSFER_S):
            reader, writer = await asyncio.open_connection(server, port, local_addr=(server, 0))
            question = encode_name(zone) + struct.pack("!HH", AXFR, 1)
            query = struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + question
            writer.write(struct.pack("!H", len(query)) + query)
            records: list[ZoneRecord] = []
            ends = 0
            for _ in range(MESSAGES_MOST):
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                for record in read_records(await reader.readexactly(length)):
                    if record.type == "SOA":
                        ends += 1
                    else:
                        records.append(record)
                if ends == 2 or len(records) > RECORDS_MOST:
                    break
    except TimeoutError:
        raise Unavailable(f"{server} gave no transfer of {zone} within {TRANSFER_S:g} s") from None
    except (OSError, asyncio.IncompleteReadError, ValueError, struct.error, IndexError) as error:
        raise Unavailable(f"{server} gave no transfer of {zone}: {error}") from None
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    if ends != 2:
        raise Unavailable(f"{server} gave no whole transfer of {zone}")
    return records


def encode_name(name: str) -> bytes:
    """Return a domain name as it is sent."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def read_records(message: bytes) -> Iterator[ZoneRecord]:
    """Yield the answers of a message; unknown types are left out. ``ValueError`` for an error or nonsense."""
    _, flags, questions, answers, _, _ = struct.unpack("!HHHHHH", message[:12])
    if flags & 0xF:
        raise ValueError(f"the server refuses with code {flags & 0xF}")
    at = 12
    for _ in range(questions):
        _, at = _read_name(message, at)
        at += 4
    for _ in range(answers):
        name, at = _read_name(message, at)
        number, _, ttl, length = struct.unpack("!HHIH", message[at : at + 10])
        at += 10
        known = _read_content(message, at, number, length)
        at += length
        if known is not None:
            yield ZoneRecord(name, known[0], known[1], ttl)


def _read_content(message: bytes, at: int, number: int, length: int) -> tuple[str, str] | None:
    data = message[at : at + length]
    if number in (1, 28):
        return ("A" if number == 1 else "AAAA"), str(ipaddress.ip_address(data))
    if number in _NAMES:
        return _NAMES[number], _read_name(message, at)[0]
    if number == SOA:
        return "SOA", ""
    if number == 15:
        return "MX", f"{struct.unpack('!H', data[:2])[0]} {_read_name(message, at + 2)[0]}"
    if number == 33:
        words = " ".join(str(one) for one in struct.unpack("!HHH", data[:6]))
        return "SRV", f"{words} {_read_name(message, at + 6)[0]}"
    if number == 16:
        parts, place = list[str](), 0
        while place < len(data):
            part = data[place + 1 : place + 1 + data[place]].decode("latin-1")
            parts.append('"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"')
            place += 1 + data[place]
        return "TXT", " ".join(parts)
    return None


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """The name, and the place after it."""
    labels: list[str] = []
    after, pointers = 0, 0
    while length := message[at]:
        if length >= 0xC0:
            after = after or at + 2
            at = (length & 0x3F) << 8 | message[at + 1]
            pointers += 1
            if pointers > _POINTERS_MOST:
                raise ValueError("a name points to itself")
            continue
        labels.append(message[at + 1 : at + 1 + length].decode("latin-1").lower())
        at += 1 + length
    return ".".join(labels), after or at + 1
