"""The catalogue of resources that LIQUID offers, and its version (docs/reference/commitments.md#catalogue).

The version rises with every change of the content: of flavor groups, of units, of what is configured. It is kept in the
store (``Knowledge/liquid-catalogue``) with a digest of the content, so that all processes answer the same one, and a
restart does not change it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base import BadInput, Clock, OutliveError, Unavailable, get_logger
from outlive.commitments.names import resource_name
from outlive.commitments.reports import Offer, is_name, offers_of, service_info
from outlive.commitments.settings import CommitmentSettings
from outlive.placement import NEVER, record, version_of
from outlive.resources import FlavorGroup
from outlive.runtime import Informer
from outlive.store import Store

CATALOGUE: Final = "liquid-catalogue"
"""The name of what says when the catalogue last changed."""

_log = get_logger("commitments")


class PublishedOffers(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered now, and as which version."""

    version: int
    offers: tuple[Offer, ...]


class Catalogue:
    """Reads the flavor groups and says which version of them it is."""

    def __init__(
        self, store: Store, groups: Informer[FlavorGroup], settings: CommitmentSettings, *, clock: Clock
    ) -> None:
        self._store = store
        self._groups = groups
        self._settings = settings
        self._clock = clock

    def list_offers(self) -> tuple[Offer, ...]:
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

    async def read(self) -> PublishedOffers:
        """The offers with their version, which is written first if the content is new. ``Unavailable`` as
        ``list_offers``, and where the store does not answer."""
        offers = self.list_offers()
        try:
            known = await record(self._store, CATALOGUE, [service_info(offers, NEVER)], clock=self._clock)
        except OutliveError as error:
            _log.warning("catalogue.no_version", code=error.code, error=str(error))
            raise Unavailable("the version of the catalogue cannot be read") from None
        version = version_of(known)
        assert version is not None
        return PublishedOffers(version=version, offers=offers)
