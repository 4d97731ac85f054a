"""Asks Keystone for the names of domains and the domains of projects, now and then and when one is missing.

LIQUID says the name with each batch and each push of quota; Keystone is asked for what nobody has said. What it does
not tell now stays unknown: what needs the name waits (docs/design/commitment-rules.md#domains).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from outlive.base import Clock, OutliveError, deadline, get_logger, set_within
from outlive.commitments.batch import Batch
from outlive.commitments.ports import DomainSource
from outlive.placement import Domains

REFRESH_S: Final = 900.0
"""How often Keystone is asked for all of them."""
AGAIN_S: Final = 10.0
"""The shortest time between two calls, for all callers together."""
BATCH_S: Final = 5.0
"""How long a batch waits for the names of its domains."""

_log = get_logger("commitments.domains")


class DomainNames:
    """See the module. ``source``: ``None`` where there is no Keystone."""

    def __init__(self, domains: Domains, source: DomainSource | None, *, clock: Clock) -> None:
        self._domains = domains
        self._source = source
        self._clock = clock
        self._missing = asyncio.Event()
        self._asked = asyncio.Event()
        """Set after each call, whatever came of it."""

    @property
    def has_source(self) -> bool:
        """True if a source of domain names is configured."""
        return self._source is not None

    async def resolve(self, batch: Batch) -> None:
        """Learn what the batch says of domains; where it leaves a name open, wait for Keystone for a moment."""
        for project in batch.projects:
            self._domains.learn(project.domain, name=project.domain_name, project=project.project)
        if self.want(project.domain for project in batch.projects) and self._source is not None:
            self._asked.clear()
            try:
                with deadline(BATCH_S):
                    await self._asked.wait()
            except TimeoutError:
                _log.warning("domains.not_in_time")

    def want(self, domains: Iterable[str]) -> bool:
        """Ask Keystone soon if the name of one of these domains is not known; whether that is so."""
        missing = any(domain and not self._domains.name_of(domain) for domain in domains)
        if missing:
            self._missing.set()
        return missing

    async def run(self) -> None:
        """Ask until cancelled; without a source there is nobody to ask."""
        while self._source is not None:
            self._missing.clear()
            try:
                for domain in await self._source.list_domains():
                    self._domains.learn(domain.id, name=domain.name)
                for project in await self._source.list_projects():
                    self._domains.learn(project.domain_id, project=project.id)
            except OutliveError as error:
                _log.warning("domains.not_read", error=str(error))
            self._asked.set()
            await self._clock.sleep(AGAIN_S)
            await set_within(self._missing, REFRESH_S)
