"""The catalogue of resources that LIQUID offers, and its version (docs/reference/commitments.md#catalogue).

The version rises with every change of the content: of flavor groups, of units, of what is configured. It is kept in the
store with a digest of the content, so that all processes answer the same one, and a restart does not change it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import BadInput, OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.commitments.liquid import ServiceInfo, encode
from outlive.commitments.names import resource_name
from outlive.commitments.reports import Offer, is_name, offers_of, service_info
from outlive.commitments.settings import CommitmentSettings
from outlive.resources import FlavorGroup, ObjectMeta, ResourceCatalogue
from outlive.runtime.informer import Informer
from outlive.store import Store, compare_and_swap

CATALOGUE: Final = "liquid"
"""The one object of the kind."""
NEVER: Final = -1
"""A version that no catalogue has, for contents whose version is not needed."""

_log = get_logger("commitments")


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered now, and as which version."""

    version: int
    offers: tuple[Offer, ...]

    @property
    def info(self) -> ServiceInfo:
        """The catalogue as LIQUID reads it."""
        return service_info(self.offers, self.version)


class Catalogue:
    """Reads the flavor groups and says which version of them it is."""

    def __init__(
        self, store: Store, groups: Informer[FlavorGroup], settings: CommitmentSettings, *, clock: Clock
    ) -> None:
        self._store = store
        self._groups = groups
        self._settings = settings
        self._clock = clock

    def offers(self) -> tuple[Offer, ...]:
        """The groups that are offered. ``Unavailable`` before they were listed, or where a unit contradicts one; the
        log says what the operator has to change."""
        if not self._groups.synced:
            raise Unavailable("flavor groups are not known yet")
        groups = [group.spec for group in self._groups.items()]
        for group in groups:
            if not is_name(resource_name(group.group_name, "ram")):
                _log.warning("catalogue.group_left_out", group=group.group_name, why="LIQUID takes no such name")
        try:
            return offers_of(groups, self._settings)
        except BadInput as error:
            _log.error("catalogue.contradiction", place=error.place, error=error.message, remedy=error.remedy)
            raise Unavailable("the unit of a flavor group contradicts its flavors") from None

    async def read(self) -> Offered:
        """The offers with their version, which is written first if the content is new. ``Unavailable`` as ``offers``,
        and where the store does not answer."""
        offers = self.offers()
        digest = hashlib.sha256(encode(service_info(offers, NEVER))).hexdigest()

        def risen(kept: ResourceCatalogue | None) -> ResourceCatalogue | None:
            if kept is not None and kept.digest == digest:
                return None
            version = max(int(self._clock.now()), kept.version + 1 if kept is not None else 0)
            if kept is None:
                return ResourceCatalogue(metadata=ObjectMeta(name=CATALOGUE), version=version, digest=digest)
            return msgspec.structs.replace(kept, version=version, digest=digest)

        try:
            written = await compare_and_swap(self._store, ResourceCatalogue, CATALOGUE, risen, clock=self._clock)
        except OutliveError as error:
            _log.warning("catalogue.no_version", code=error.code, error=str(error))
            raise Unavailable("the version of the catalogue cannot be read") from None
        assert written is not None
        return Offered(version=written.version, offers=offers)
