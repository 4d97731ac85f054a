"""The metrics of a host's daemon, served by the same server as those of ``outlive up``, with its limits.

Section ``metrics`` of ``node.yaml``. Nothing is served unless an address is set. Beyond this machine it needs TLS, and
everywhere a token of at least the role viewer (docs/how-to/observing.md#daemons).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outlive.api.app import ApiDeps, create_app
from outlive.api.auth import Tokens, read_tokens
from outlive.api.config import HostMetricsSettings, parse_listen
from outlive.api.server import serve_app
from outlive.base import BadInput, Clock, Ids
from outlive.runtime import Metrics
from outlive.store import Store


@asynccontextmanager
async def serve_metrics(
    settings: HostMetricsSettings, metrics: Metrics, store: Store, *, version: str, clock: Clock, ids: Ids
) -> AsyncIterator[str]:
    """Serve them while the block runs, if an address is set; gives the URL, or nothing. ``BadInput`` where a file of
    the settings cannot be used, ``InUse`` where the port is taken."""
    if not settings.listen:
        yield ""
        return
    try:
        known = read_tokens(Path(settings.tokens_file))
    except BadInput as error:
        raise BadInput(error.message, place=f"metrics.tokensFile: {error.place}", remedy=error.remedy) from None
    api = settings.api
    deps = ApiDeps(
        store=store,
        clock=clock,
        ids=ids,
        tokens=Tokens(known, clock=clock),
        metrics=metrics,
        version=version,
        settings=api,
        metrics_only=True,
    )
    host, port = parse_listen(api.listen)
    async with serve_app(create_app(deps), host, port, settings=api) as served:
        yield served.url
