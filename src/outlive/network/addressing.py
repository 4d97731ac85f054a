"""Addresses, networks and MACs: from text to the one form in which everything here compares and writes them.

Lower case, the shortest form of IPv6, and IPv4 for an IPv4 address that is mapped into IPv6
(docs/design/network-decisions.md#addresses). What cannot be read is ``Invalid`` and names the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Final

from outlive.base import Invalid

Address = IPv4Address | IPv6Address
HostAddress = IPv4Interface | IPv6Interface
"""An address with the mask of its subnet."""
Subnet = IPv4Network | IPv6Network

_MASK: Final = re.compile(r"[0-9]{1,3}", re.ASCII)
_MAC: Final = re.compile(r"[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}", re.ASCII)
_MAPPED_BITS: Final = 96
TEXTS_KEPT: Final = 32_768
"""Texts whose parsed form is kept: a cloud has few subnets, and asks for them with every VM."""


@lru_cache(maxsize=TEXTS_KEPT)
def parse_address(text: str) -> Address:
    """An address without mask."""
    try:
        if "%" in text:
            raise ValueError("it has a zone")
        address = ip_address(text)
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no address", remedy="write it like 10.44.7.1 or fd44::1") from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=TEXTS_KEPT)
def parse_host(text: str) -> HostAddress:
    """A host address with the mask of its subnet."""
    _, slash, mask = text.partition("/")
    try:
        if not slash or "%" in text or _MASK.fullmatch(mask) is None:
            raise ValueError("it has no mask")
        found = ip_interface(text)
    except ValueError:
        raise Invalid(
            f"{text[:80]!r} is no address with a mask", remedy="write it like 10.44.7.23/24 or fd44::17/64"
        ) from None
    if isinstance(found, IPv6Interface) and found.ip.ipv4_mapped and found.network.prefixlen >= _MAPPED_BITS:
        return IPv4Interface((found.ip.ipv4_mapped, found.network.prefixlen - _MAPPED_BITS))
    return found


@lru_cache(maxsize=TEXTS_KEPT)
def parse_subnet(text: str) -> Subnet:
    """The network of a cidr; bits behind the mask are dropped."""
    return parse_host(text).network


def parse_any(text: str) -> Address:
    """An address with or without mask; the mask is dropped."""
    return parse_host(text).ip if "/" in text else parse_address(text)


def parse_mac(text: str) -> str:
    """A MAC of six bytes, lower case with colons."""
    if _MAC.fullmatch(text.lower()) is None:
        raise Invalid(f"{text[:80]!r} is no MAC", remedy="write it like 0a:58:0a:2c:07:17")
    return text.lower().replace("-", ":")


def is_group(mac: str) -> bool:
    """True for a MAC of many: no interface has one."""
    return bool(int(mac[:2], 16) & 1)


def mac_key(text: str) -> str:
    """By what MACs are compared: the one form of each, and a text that is no MAC as it is."""
    try:
        return parse_mac(text)
    except Invalid:
        return text


def address_key(text: str) -> str:
    """By what addresses are compared, with or without mask: the one form of each; what is none as it is."""
    try:
        return str(parse_any(text))
    except Invalid:
        return text


def is_within(address: Address, subnets: Iterable[Subnet]) -> bool:
    """True if one of the subnets contains the address."""
    return any(address in subnet for subnet in subnets)


def find_ipv4(texts: Iterable[str]) -> IPv4Address | None:
    """The first IPv4 address among these, with or without mask."""
    return next((one for one in map(parse_any, texts) if isinstance(one, IPv4Address)), None)


def derive_mac(address: Address) -> str:
    """The MAC that belongs to an address: of IPv4 its bytes, of IPv6 the first ones of the digest of its text."""
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    own = address.packed if isinstance(address, IPv4Address) else hashlib.sha256(str(address).encode()).digest()[:4]
    return (b"\x0a\x58" + own).hex(":")


def derive_link_local(mac: str) -> IPv6Address:
    """The link-local address of a MAC, by modified EUI-64."""
    own = bytes.fromhex(mac.replace(":", ""))
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([own[0] ^ 2]) + own[1:3] + b"\xff\xfe" + own[3:])
