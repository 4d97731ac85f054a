"""How much more than it has a host may give, by its traits (docs/reference/placement.md#overcommit)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from outlive.base import get_logger
from outlive.placement.settings import OvercommitMapping
from outlive.resources import Hypervisor
from outlive.runtime import Informer
from outlive.store import Store

_log = get_logger("placement")


def overcommit_of(traits: Collection[str], mappings: Iterable[OvercommitMapping]) -> dict[str, float]:
    """Resource → ratio for a host with these traits: matching mappings in order, the later one of a resource counts."""
    ratios: dict[str, float] = {}
    for mapping in mappings:
        matches = mapping.has_trait in traits if mapping.has_trait else mapping.hasnt_trait not in traits
        if matches:
            ratios |= mapping.overcommit
    return ratios


class OvercommitController:
    """Writes the ratios of each host into its spec. Without any mapping nobody runs it, and people's ratios stay."""

    name = "overcommit"

    def __init__(
        self, store: Store, hypervisors: Informer[Hypervisor], mappings: tuple[OvercommitMapping, ...]
    ) -> None:
        self._store = store
        self._hypervisors = hypervisors
        self._mappings = mappings

    async def reconcile(self, key: str) -> None:
        """One host; only traits that were found on it count."""
        host = self._hypervisors.get(key)
        if host is None:
            return
        wanted = overcommit_of(host.status.traits, self._mappings)
        if wanted == host.spec.overcommit:
            return
        spec = msgspec.structs.replace(host.spec, overcommit=wanted)
        written = await self._store.replace(msgspec.structs.replace(host, spec=spec))
        self._hypervisors.note(written, replaced=host.metadata.resource_version)
        _log.info("placement.overcommit", hypervisor=key, ratios=wanted)
