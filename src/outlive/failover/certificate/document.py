"""The certificate as a document (docs/reference/failover-certificate.md#certificate-form)."""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.failover.topology import HOST_UNIT

CERTIFICATE_VERSION: Final = 1


class VmLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM of the fleet."""

    id: str
    host: str
    need: int
    """Failures, its own host's among them, that it is certified to survive; 0 where nothing is claimed."""
    slots: tuple[str, ...]
    """The slots that count for it, by name."""
    required: int = 0
    """Slots that it needs, where that is more than ``need``: only partial certificates have such VMs."""


class SlotLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slot that is not said to be unready."""

    name: str
    host: str
    cpu_milli: int
    memory_bytes: int
    allocations: dict[str, str]
    """VM → the host that it ran on when it was added."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Every VM survives every set of failed units, as many as it needs slots and at most ``k``."""

    version: int
    state_digest: str
    k: int
    hosts: tuple[str, ...]
    vms: tuple[VmLine, ...]
    slots: tuple[SlotLine, ...]
    unit: str = HOST_UNIT
    """What fails as one; absent for hosts."""


def encode_certificate(certificate: Certificate) -> bytes:
    """The file: JSON, a line for each VM and each slot."""
    encode = msgspec.json.encode
    bare = encode(msgspec.structs.replace(certificate, vms=(), slots=()))
    vms = b",\n".join(map(encode, certificate.vms))
    slots = b",\n".join(
        encode(msgspec.structs.replace(slot, allocations=dict(sorted(slot.allocations.items()))))
        for slot in certificate.slots
    )
    head, _, rest = bare.partition(b'"vms":[]')
    tail = rest.removeprefix(b',"slots":[]')
    return b'%s\n"vms":[\n%s\n],\n"slots":[\n%s\n]%s\n' % (head, vms, slots, tail)
