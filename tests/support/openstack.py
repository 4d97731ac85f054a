"""A session without a Keystone: a token and endpoints that the test names. Everything after that is the real one."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from outlive.base import NotFound
from outlive.drivers.openstack import OpenStackSession
from outlive.inventory import OpenStackSettings
from outlive.runtime import Duration


def settings(**given: Any) -> OpenStackSettings:
    """Settings of a cloud ``lab`` with short times; durations in seconds."""
    said = {"cloud": "lab", "request_limit": 5.0, "project_pause": 0.0, **given}
    return OpenStackSettings(**{k: Duration(v) if isinstance(v, float) else v for k, v in said.items()})


class _Login:
    number = 1

    def get_token(self) -> str:
        return f"token-{self.number}"

    def renew(self, refused: str) -> str:
        self.number += refused == self.get_token()
        return self.get_token()

    def tls(self) -> ssl.SSLContext | bool:
        return True


class DirectSession(OpenStackSession):
    """See the module."""

    def __init__(self, endpoints: Mapping[str, str], said: OpenStackSettings) -> None:
        super().__init__(said)
        self._endpoints_named = endpoints
        self._login = _Login()  # type: ignore[assignment]

    async def get_endpoint(self, service: str, *, interface: str = "", version: str = "") -> str:
        """The one that the test names."""
        if service not in self._endpoints_named:
            raise NotFound(f"the catalogue has no {interface} endpoint of {service}")
        return self._endpoints_named[service]


@asynccontextmanager
async def session(endpoints: Mapping[str, str], **given: Any) -> AsyncIterator[DirectSession]:
    """A session for as long as the block lasts; endpoints by type of service."""
    opened = DirectSession(endpoints, settings(**given))
    try:
        yield opened
    finally:
        await opened.close()
