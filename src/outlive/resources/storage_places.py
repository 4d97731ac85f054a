"""Places of storage: what is reached or not as a whole, such as a pool, a mounted file system, a device.

A disk is named as in ``outlive.resources.definitions``, a place likewise: ``rbd:POOL``, ``rbd+MONITOR,…:POOL``,
``file:/FOLDER``, ``block:/dev/…``, ``drbd:RESOURCE``. A place without a name (``block:``) means all of its kind,
the empty one for all storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

_KINDS: Final = frozenset({"rbd", "file", "block", "drbd"})
"""Disks of which a host can say whether it reaches them."""
HOSTS_OWN: Final = "local"
"""Firmware files and devices of a host: they lie in no storage."""


def place_of(disk: str) -> str:
    """Where the disk lies, as its name says; empty where nobody can say whether that is reached."""
    kind, _, name = disk.partition(":")
    match kind.partition("+")[0]:
        case "rbd":
            return f"{kind}:{name.rpartition('/')[0]}"
        case "file":
            return f"{kind}:{PurePosixPath(name).parent}"
        case "block" | "drbd":
            return disk
    return ""


def lies_in(disk: str, place: str) -> bool:
    """Whether the disk lies in the place, as far as its id says; true where the id does not say.

    Ceph clusters are named by their monitors, of which a definition may name some, or none.
    """
    kind, _, name = disk.partition(":")
    head, _, monitors = kind.partition("+")
    place_kind, _, place_name = place.partition(":")
    place_head, _, place_monitors = place_kind.partition("+")
    if head == HOSTS_OWN:
        return False
    if place == "" or head not in _KINDS:
        return True
    if head != place_head:
        return False
    if place_name == "":
        return True
    if head == "rbd":
        named = monitors and place_monitors
        same = not named or bool(set(monitors.split(",")) & set(place_monitors.split(",")))
        return same and name.rpartition("/")[0] == place_name
    if head == "file":
        return PurePosixPath(name).is_relative_to(place_name)
    return name == place_name


def first_lost(disks: Sequence[str], places: Sequence[str]) -> str | None:
    """The first of the places that one of the disks lies in; ``None``: none of them does."""
    return next((place for place in places for disk in disks if lies_in(disk, place)), None) if places else None
