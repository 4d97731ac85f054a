"""Whether an API server serves the kinds of this version: asked before anything runs on it, and again now and then.

Kinds of an older version are refused: the server drops fields that its schema does not have, without a word, and one of
them may be what the safety protocol rests on. Kinds of a newer version are not: they come before the controllers when a
cluster is upgraded, and an object that uses what is new in them is reported by itself (``object-malformed``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from outlive.base import NotFound, Refused, Unavailable, join_parts
from outlive.resources import API_VERSION, KINDS, VERSION, build_crds
from outlive.store.kubernetes.answers import CRDS_REMEDY
from outlive.store.kubernetes.store import KubernetesStore

NAMED: Final = 6
LEAST: Final = (1, 20)
"""The oldest API server on which this was tried."""
CRDS_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NUMBER: Final = re.compile(r"\d+")


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    major: str = ""
    minor: str = ""
    git_version: str = ""


class _ServedKind(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_ServedKind, ...] = ()


async def check_kinds_served(store: KubernetesStore) -> list[str]:
    """Fields that the server's kinds have and this version does not know: empty, but for kinds of a newer version.

    ``Refused`` for a server that is too old, and for kinds or fields that it does not have; errors of the store.
    """
    check_version(msgspec.convert(await store.call("GET", "/version"), _Version))
    try:
        answer = await store.call("GET", f"/apis/{API_VERSION}")
    except (NotFound, Unavailable) as error:
        if isinstance(error, Unavailable) and error.remedy != CRDS_REMEDY:
            raise
        raise Refused(f"the API server does not serve {API_VERSION}", remedy=CRDS_REMEDY) from None
    served = {one.name for one in msgspec.convert(answer, _Resources).resources}
    wanted = {kind.info.plural for kind in KINDS.values()}
    wanted |= {f"{kind.info.plural}/status" for kind in KINDS.values() if kind.has_status()}
    if missing := sorted(wanted - served):
        raise Refused(
            f"the API server does not serve {join_parts(missing, most=NAMED)} of {API_VERSION}", remedy=CRDS_REMEDY
        )
    lacking, unknown = list[str](), list[str]()
    for ours in build_crds():
        theirs = await store.call("GET", f"{CRDS_PATH}/{ours['metadata']['name']}")
        plural = ours["spec"]["names"]["plural"]
        wanted_schema, found = _version_schema(ours), _version_schema(theirs)
        lacking += (f"{plural}{path}" for path in missing_fields(wanted_schema, found))
        unknown += (f"{plural}{path}" for path in missing_fields(found, wanted_schema))
    if lacking:
        raise Refused(
            f"the kinds on the API server are of an older version, which would drop {join_parts(lacking, most=NAMED)}",
            remedy=CRDS_REMEDY,
        )
    return unknown


def check_version(version: _Version) -> None:
    """``Refused`` for a server that is older than ``LEAST``. Vendors write more than numbers, such as ``20+``."""
    matches = (_NUMBER.match(part) for part in (version.major, version.minor))
    numbers = tuple(int(one[0]) for one in matches if one is not None)
    if len(numbers) == len(LEAST) and numbers < LEAST:
        raise Refused(
            f"the API server is {version.git_version or '.'.join(map(str, numbers))}, which is too old",
            remedy=f"it has to be {LEAST[0]}.{LEAST[1]} or later",
        )


def missing_fields(wanted: Mapping[str, Any], found: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of fields of a structural schema that another one would drop, such as ``.spec.fencing.address``."""
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = found.get("properties", {})
    for name, schema in wanted.get("properties", {}).items():
        if name in there:
            yield from missing_fields(schema, there[name], f"{path}.{name}")
        elif not isinstance(found.get("additionalProperties"), dict):
            yield f"{path}.{name}"
    for inner in ("items", "additionalProperties"):
        if isinstance(wanted.get(inner), dict) and isinstance(found.get(inner), dict):
            yield from missing_fields(wanted[inner], found[inner], f"{path}[]")


def _version_schema(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the version that is used here."""
    versions = crd["spec"]["versions"]
    found: Mapping[str, Any] = next((one for one in versions if one["name"] == VERSION), {})
    schema: Mapping[str, Any] = found.get("schema", {}).get("openAPIV3Schema", {})
    return schema
