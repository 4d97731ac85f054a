"""Names of LIQUID's resources and of the objects of commitments (docs/reference/commitments.md#names)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Final, Literal, get_args

from outlive.base import BadInput, stable_hash
from outlive.resources import COMMITMENT_PREFIX, CommittedType, object_name

ResourceKind = Literal["ram", "cores", "instances"]
RESOURCE_KINDS: Final[tuple[ResourceKind, ...]] = get_args(ResourceKind)
"""What LIQUID counts of every flavor group."""

RESOURCE_PREFIX: Final = "hw_version_"
UNKNOWN_ZONE: Final = "unknown"
"""The zone of what is in none that the caller knows."""
RESERVED_ZONES: Final = frozenset({"any", UNKNOWN_ZONE, "total", ""})
"""Words of LIQUID that look like zones and are none."""

_COMMITTED: Final[dict[str, CommittedType]] = {"ram": "memory", "cores": "cores"}
_UUID = re.compile(r"[a-zA-Z0-9-]{6,40}\Z")
_PLAIN_PROJECT = re.compile(r"([0-9a-z]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\Z")
"""Ids after which a dash can only begin the zone, as Keystone makes them."""
_NOT_IN_A_WORD = re.compile(r"[^a-z0-9-]")
_CHANGE_PREFIX: Final = "change-"
_CHANGE_DIGITS: Final = 12
_READABLE: Final = 56
"""Characters of a capacity object's name before its suffix."""


def resource_name(group: str, kind: ResourceKind) -> str:
    """The resource of LIQUID that counts ``kind`` of a flavor group."""
    return f"{RESOURCE_PREFIX}{group}_{kind}"


def parse_resource(name: str) -> tuple[str, CommittedType]:
    """Flavor group and what of it is committed; ``BadInput`` for a name of anything that nobody can commit to."""
    if not name.startswith(RESOURCE_PREFIX):
        raise BadInput(f'invalid resource name "{name}" (missing prefix)', remedy=f"it begins with {RESOURCE_PREFIX}")
    rest = name.removeprefix(RESOURCE_PREFIX)
    for kind, committed in _COMMITTED.items():
        if rest == f"_{kind}":
            raise BadInput(f'invalid resource name "{name}" (empty group name)', remedy="name the flavor group")
        if rest.endswith(f"_{kind}"):
            return rest.removesuffix(f"_{kind}"), committed
    raise BadInput(f'invalid resource name "{name}" (only _ram and _cores resources are supported for commitments)')


def check_uuid(text: str) -> None:
    """``BadInput`` unless the text can be the id of a commitment."""
    if not _UUID.match(text):
        raise BadInput(
            f"unexpected commitment format: {text[:80]!r}",
            remedy="6 to 40 letters, digits and dashes, as Limes makes them",
        )


def commitment_name(uuid: str) -> str:
    """The name of a commitment's object: ``commitment-<uuid>``, where that is a DNS name."""
    return object_name(f"{COMMITMENT_PREFIX}{uuid}")


def change_name(number: int) -> str:
    """The name of the change of that number; changes sort by name as by number."""
    return f"{_CHANGE_PREFIX}{number:0{_CHANGE_DIGITS}d}"


def change_number(name: str) -> int:
    """The number of a change, 0 for a name without one."""
    digits = name.removeprefix(_CHANGE_PREFIX)
    return int(digits) if len(digits) == _CHANGE_DIGITS and digits.isascii() and digits.isdigit() else 0


def slot_name(cr_name: str, index: int) -> str:
    """The name of a commitment's slot."""
    return f"{cr_name}-{index}"


def slot_index(name: str) -> int:
    """The number of a slot, -1 for a name without one. Only for names of slots: a uuid may end in digits, too."""
    parts = name.split("-")
    return int(parts[-1]) if len(parts) >= 3 and parts[-1].isascii() and parts[-1].isdigit() else -1


def slot_index_next(names: Iterable[str]) -> int:
    """One more than the largest number of these slots; gaps are not filled."""
    return max(map(slot_index, names), default=-1) + 1


def free_slot_names(cr_name: str, existing: Iterable[str], taken: Container[str]) -> Iterator[str]:
    """Names of further slots of a commitment, without end: after its existing ones, and none that is taken."""
    index = slot_index_next(name for name in existing if name.startswith(f"{cr_name}-"))
    while True:
        name = slot_name(cr_name, index)
        index += 1
        if name not in taken:
            yield name


def uuid_of(name: str) -> str:
    """The commitment of a slot by the slot's name. Slots that passed to another commitment keep their name, and ids
    that are no DNS names cannot be read back: ``spec.committedResourceReservation.commitmentUUID`` is what counts."""
    text = name.removeprefix(COMMITMENT_PREFIX)
    head, dash, _ = text.rpartition("-")
    return head if dash else text


def capacity_name(group: str, zone: str) -> str:
    """The name of a flavor group's capacity object in a zone: readable words, then six digits of a hash of both."""
    words = _NOT_IN_A_WORD.sub("-", f"{group}-{zone}".lower())[:_READABLE]
    hashed = 0x811C9DC5  # FNV-1a
    for byte in b"\0".join((group.encode(), zone.encode())):
        hashed = (hashed ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{words.lstrip('-') or 'capacity'}-{hashed & 0xFFFFFF:06x}"


def quota_name(project: str, zone: str) -> str:
    """The name of a project's quota object in a zone: ``quota-<project>-<zone>`` where that is a DNS name and can be
    read in one way only; else it is made from both and a hash."""
    name = object_name(f"quota-{project}-{zone}")
    if _PLAIN_PROJECT.match(project):
        return name
    return f"{name[:200].rstrip('-.')}-{stable_hash(project, zone):016x}"


def history_name(project: str, month: str) -> str:
    """The name of a project's usage history of a month: ``usage-<project>-<month>``, where that is a DNS name."""
    return object_name(f"usage-{project}-{month}")


def real_zone(name: str, known: Container[str]) -> str:
    """The zone if it is one of the known ones, else ``unknown``."""
    return name if name not in RESERVED_ZONES and name in known else UNKNOWN_ZONE
