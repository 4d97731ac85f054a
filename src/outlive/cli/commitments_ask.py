"""Options by which a commitment is asked for, and what their texts mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outlive.base import BadInput, NotFound, Usage
from outlive.cli.arguments import name_completer

if TYPE_CHECKING:
    from outlive.commitments import Commitment, CommitmentSettings, GroupUnit
    from outlive.resources import CommittedResource, CommittedType, FlavorGroupSpec, Resource
    from outlive.roles import RoleSettings
    from outlive.store import Store

Project = Annotated[str, typer.Option("--project", metavar="PROJECT", help="Of this project.")]
Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="Of this flavor group.")]
Zone = Annotated[str, typer.Option("--zone", metavar="ZONE", help="In this zone.")]
Amount = Annotated[
    str,
    typer.Option("--amount", metavar="AMOUNT", help="Units of its memory (8), memory (64Gi) or cores (16cores)."),
]
Uuid = Annotated[
    str, typer.Argument(metavar="UUID", help="Of the commitment.", autocompletion=name_completer("committedresources"))
]
ZONES_SHOWN: Final = 20
"""Zones that an error names."""
ASKED: Final = "asked-for"
"""What a commitment is called that only a question knows."""
_AMOUNT = re.compile(r"(\d{1,20})\s*(|cores?|[KMGTPE]i|[kMGTPE])\Z")


def amount_of(text: str, unit: GroupUnit) -> tuple[CommittedType, int]:
    """What is committed, and how much: units of memory as LIQUID counts them, or cores; ``BadInput``."""
    from outlive.base import parse_bytes

    match = _AMOUNT.match(text.strip())
    if match is None:
        raise BadInput(f"{text[:80]!r} is no amount", place="--amount", remedy="write 8, 64Gi or 16cores")
    number, suffix = int(match[1]), match[2]
    if not number:
        raise BadInput(f"{text[:80]!r} commits to nothing", place="--amount", remedy="write 1 or more")
    if suffix.startswith("core"):
        return "cores", number
    if not suffix:
        return "memory", number
    size = parse_bytes(match[1] + suffix)
    if size % unit.size_bytes:
        raise BadInput(
            f"{text} is no multiple of {unit.text}",
            place="--amount",
            remedy=f"memory of flavor group {unit.group} is sold in units of {unit.text}",
        )
    return "memory", size // unit.size_bytes


def hypothetical_commitment(
    groups: Mapping[str, FlavorGroupSpec],
    settings: CommitmentSettings,
    project: str,
    group: str,
    zone: str,
    amount: str,
    *,
    uuid: str = ASKED,
) -> Commitment:
    """A confirmed commitment that nobody has yet; ``NotFound`` if there is no such group."""
    from outlive.commitments import Commitment, unit_of

    check_asked(project, group, zone, amount)
    found = groups.get(group)
    if found is None:
        known = ", ".join(sorted(groups)) or "none"
        raise NotFound(f"there is no flavor group {group[:80]!r}", place="--group", remedy=f"known are: {known}")
    unit = unit_of(found, settings)
    kind, number = amount_of(amount, unit)
    return Commitment(
        uuid=uuid,
        project=project,
        group=group,
        zone=zone,
        type=kind,
        memory_bytes=unit.to_bytes(number) if kind == "memory" else 0,
        cores=number if kind == "cores" else 0,
        state="confirmed",
    )


def check_asked(project: str, group: str, zone: str, amount: str) -> None:
    """``Usage`` where an option is missing."""
    given = {"--project": project, "--group": group, "--zone": zone, "--amount": amount}
    missing = [name for name, value in given.items() if not value]
    if missing:
        raise Usage(f"{', '.join(missing)} is missing", remedy="say who commits to how much of what, and where")


def check_zone(zone: str, zones: Iterable[str]) -> None:
    """``NotFound`` for a zone that no host is in, with the nearest name; where no host names a zone, each is fine."""
    known = sorted({*zones} - {""})
    if known and zone not in known:
        near = difflib.get_close_matches(zone, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise NotFound(
            f"there is no zone {zone[:80]!r}",
            place="--zone",
            remedy=f"{hint}known are: {', '.join(known[:ZONES_SHOWN])}",
        )


async def commitment_of(store: Store, text: str) -> CommittedResource:
    """The commitment of that uuid, or of that name of an object; ``NotFound``."""
    from outlive.commitments import commitment_name
    from outlive.resources import CommittedResource
    from outlive.store import is_object_name, read

    for name in (commitment_name(text), text):
        if is_object_name(name) and (found := await read(store, CommittedResource, name)) is not None:
            return found
    raise unknown_commitment(text)


def unknown_commitment(uuid: str) -> NotFound:
    """There is none of that uuid."""
    return NotFound(f"there is no commitment {uuid[:80]!r}", remedy="see outlive commitments list")


async def objects_of(store: Store, settings: RoleSettings) -> list[Resource]:
    """What a trial reads. Flavor groups are made of the flavors where no server has made them yet."""
    from outlive.commitments import READ
    from outlive.placement.flavor_groups import flavor_groups
    from outlive.resources import Flavor, FlavorGroup, ObjectMeta
    from outlive.store import list_all

    objects = [one for kind in READ async for one in list_all(store, kind)]
    if not any(isinstance(one, FlavorGroup) for one in objects):
        flavors = [one async for one in list_all(store, Flavor)]
        groups = flavor_groups(flavors, keys=settings.scheduler.flavor_group_keys)
        objects += [FlavorGroup(metadata=ObjectMeta(name=one.group_name), spec=one) for one in groups]
    return objects
