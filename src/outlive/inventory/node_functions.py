"""Virtual functions of network cards, as the configuration of another node daemon names them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from outlive.base.errors import BadInput
from outlive.node.functions.settings import SriovDevice

SECTION = "guest_networking"


def read_functions(get: Callable[..., Any]) -> list[dict[str, Any]]:
    """``links.sriov`` of ``node.yaml``; none where it is not enabled. ``BadInput``.

    ``get``: a value by its dotted key, which counts as read then. A card is called ``phy`` or ``device`` there.
    """
    key = f"{SECTION}.sriov_device"
    enabled, devices = get(f"{SECTION}.sriov_enable", False, kind=bool), get(key, (), kind=(list, tuple))
    if not enabled:
        return []
    found: list[dict[str, Any]] = []
    for number, entry in enumerate(devices):
        given = entry if isinstance(entry, dict) else {}
        document = {
            "device": given.get("phy") or given.get("device"),
            "count": given.get("vfcount"),
            **({"mtu": given["mtu"]} if given.get("mtu") else {}),
        }
        try:
            msgspec.convert(document, SriovDevice)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"{key}[{number}] cannot be: {error}", remedy="write phy, vfcount and mtu there, and import again"
            ) from None
        found.append(document)
    return found
