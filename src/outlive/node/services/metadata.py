"""What the metadata server answers a guest, and which VM a caller is.

A caller is known by the bridge that it came from and by its address: the lease of that address on that network names
the interface, and the interface the VM. Guests of two networks may have the same address.
"""

from __future__ import annotations

from typing import Final

import msgspec

METADATA_ADDRESS: Final = "169.254.169.254"
METADATA_PORT: Final = 80
BANNER: Final = "Outlive metadata\n"
ITEMS: Final = ("instance-id", "name", "profile")
PATH_CHARACTERS: Final = 200


class MetadataVm(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as its guest may know it."""

    instance_id: str
    name: str
    profile: str = ""
    """Its flavor."""
    user_data: str | None = None


class MetadataAnswer(msgspec.Struct, frozen=True):
    """Status and text of an answer."""

    status: int
    text: str = ""


def answer_metadata(path: str, vm: MetadataVm | None) -> MetadataAnswer:
    """Return the answer to ``GET path``; ``vm`` is the caller, ``None`` if nobody knows it."""
    if path == "/":
        return MetadataAnswer(200, BANNER)
    words = path[:PATH_CHARACTERS].strip("/").split("/")
    if vm is None or len(words) < 2 or not words[0]:
        return MetadataAnswer(404)
    match words[1:]:
        case ["meta-data"]:
            return MetadataAnswer(200, "".join(f"{one}\n" for one in ITEMS))
        case ["meta-data", "instance-id"]:
            return MetadataAnswer(200, vm.instance_id)
        case ["meta-data", "name"]:
            return MetadataAnswer(200, vm.name)
        case ["meta-data", "profile"]:
            return MetadataAnswer(200, vm.profile)
        case ["user-data"] if vm.user_data is not None:
            return MetadataAnswer(200, vm.user_data)
    return MetadataAnswer(404)
