"""Settings as commands load them: the file, the environment, and what the server that wrote a state used.

The file is ``--config``, else ``OUTLIVE_CONFIG``, else ``outlive.yaml`` in the state directory if there is one. A
server keeps its settings of failover with the cluster's own object, so that a command, or somebody with a state file,
answers by the same rules as the server does; a file or variable given to the command counts more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base.errors import BadInput, NotFound

if TYPE_CHECKING:
    from outlive.roles.settings import RoleSettings
    from outlive.store import Store

CONFIG_NAME = "outlive.yaml"
SETTINGS_ANNOTATION = "outlive.dev/settings"
"""On ``Cluster/default``: the sections ``failover``, ``failoverUpkeep`` and ``protection`` of the server, as JSON."""
KEPT_SECTIONS = ("failover", "failoverUpkeep", "protection")


def all_sections() -> dict[str, type[msgspec.Struct]]:
    """Every section of ``outlive.yaml``."""
    from outlive.api.config import ApiSettings
    from outlive.roles.settings import SECTIONS

    return {"api": ApiSettings, **SECTIONS}


def config_file(given: Path | None, state_dir: Path) -> Path | None:
    """The file to read, or ``None`` where there is none."""
    if given is not None:
        return given
    named = os.environ.get("OUTLIVE_CONFIG", "")
    if named:
        return Path(named)
    beside = state_dir / CONFIG_NAME
    return beside if beside.is_file() else None


def load(file: Path | None, flags: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All sections, filled; ``BadInput`` names what is wrong."""
    from outlive.runtime.config import load_settings

    return load_settings(all_sections(), file=file, environ=os.environ, flags=flags or {})


async def settings_for(store: Store, file: Path | None) -> RoleSettings:
    """The settings by which a command answers about this store."""
    from outlive.resources import Cluster
    from outlive.roles.settings import role_settings
    from outlive.runtime.config import load_settings

    if file is None and not _in_environment():
        try:
            cluster = await store.get(Cluster, "default")
        except NotFound:
            return role_settings(load(None))
        kept = cluster.metadata.annotations.get(SETTINGS_ANNOTATION)
        if kept:
            return role_settings(load_settings(all_sections(), file=None, environ={}, flags=_flags(kept)))
    return role_settings(load(file))


def kept_settings(sections: Mapping[str, Any]) -> str:
    """What a server keeps with the cluster of its settings, as JSON; nothing that may hold a secret."""
    from outlive.failover.config import SECRET_KEYS

    kept = {name: msgspec.to_builtins(sections[name]) for name in KEPT_SECTIONS}
    for section in kept.values():
        for key in SECRET_KEYS & section.keys():
            del section[key]
        if section.get("vmSource") == "database":
            del section["vmSource"]
    return msgspec.json.encode(kept).decode()


def _in_environment() -> bool:
    prefixes = tuple(f"OUTLIVE_{name}__" for name in ("FAILOVER", "FAILOVER_UPKEEP", "PROTECTION", "SCHEDULER"))
    return any(name.upper().startswith(prefixes) for name in os.environ)


def _flags(kept: str) -> dict[str, Any]:
    try:
        sections = msgspec.json.decode(kept, type=dict[str, dict[str, Any]])
    except msgspec.MsgspecError:
        place = f"Cluster/default: annotation {SETTINGS_ANNOTATION}"
        raise BadInput("is not what a server writes", place=place, remedy="start outlive up once") from None
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


async def keep_settings(store: Store, sections: Mapping[str, Any]) -> None:
    """Keep a server's settings of failover with ``Cluster/default``, which is made if it is missing."""
    from outlive.resources import Cluster, ObjectMeta

    kept = {SETTINGS_ANNOTATION: kept_settings(sections)}
    try:
        cluster = await store.get(Cluster, "default", fresh=True)
    except NotFound:
        await store.create(Cluster(metadata=ObjectMeta(name="default", annotations=kept)))
        return
    meta = msgspec.structs.replace(cluster.metadata, annotations={**cluster.metadata.annotations, **kept})
    if meta != cluster.metadata:
        await store.replace(msgspec.structs.replace(cluster, metadata=meta))
