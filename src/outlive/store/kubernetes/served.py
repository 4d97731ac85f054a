"""Whether an API server serves the kinds of this version, asked before anything runs on it."""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import NotFound, Refused, Unavailable
from outlive.base.phrases import listing
from outlive.resources import API_VERSION, KINDS
from outlive.store.kubernetes.answers import CRDS_REMEDY
from outlive.store.kubernetes.store import KubernetesStore

NAMED: Final = 6


class _Served(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Served, ...] = ()


async def check_kinds_served(store: KubernetesStore) -> None:
    """``Refused`` names the kinds that are not served in this version; errors of the store."""
    try:
        answer = await store.call("GET", f"/apis/{API_VERSION}")
    except (NotFound, Unavailable) as error:
        if isinstance(error, Unavailable) and error.remedy != CRDS_REMEDY:
            raise
        raise Refused(f"the API server does not serve {API_VERSION}", remedy=CRDS_REMEDY) from None
    served = {one.name for one in msgspec.convert(answer, _Resources).resources}
    wanted = {name for kind in KINDS.values() for name in _names(kind.info.plural, status=kind.has_status())}
    if missing := sorted(wanted - served):
        raise Refused(
            f"the API server does not serve {listing(missing, most=NAMED)} of {API_VERSION}", remedy=CRDS_REMEDY
        )


def _names(plural: str, *, status: bool) -> tuple[str, ...]:
    return (plural, f"{plural}/status") if status else (plural,)
