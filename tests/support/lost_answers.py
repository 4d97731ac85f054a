"""Requests that arrive, and whose answers do not."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from outlive.store import HttpSession, connection_error


class LostAnswers(HttpSession):
    """``HttpCalls`` that lose the answers to the next ``losing`` writes."""

    losing = 0

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        answer = await super().call(method, url, headers, body, tls)
        if method != "GET" and self.losing > 0:
            self.losing -= 1
            raise connection_error(ConnectionResetError("the answer was lost"), self._base, writing=True)
        return answer
