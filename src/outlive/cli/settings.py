"""Settings as commands load them: the file, the environment, and what the server that wrote a state used.

Settings belong to the cluster that they are used on. A command that asks a server answers by the settings of that
server, which it asks for them: no file or variable of the machine where it runs counts, except the file that
``--config`` names, and then it says so. A state file has the settings of the server that wrote it, kept with the
cluster's own object. A state directory without a server has its own: ``OUTLIVE_CONFIG``, else ``outlive.yaml`` in it,
else those that the last server kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base import BadInput, NotFound, Refused
from outlive.cli.access import Access
from outlive.resources import CLUSTER

if TYPE_CHECKING:
    from outlive.base import Clock
    from outlive.roles import RoleSettings
    from outlive.store import Store

CONFIG_NAME = "outlive.yaml"
SETTINGS_ANNOTATION = "outlive.dev/settings"
"""On ``Cluster/default``: the sections ``KEPT_SECTIONS`` of the server, as JSON."""
SETTINGS_PATH = "/settings"
"""Where a server says by which settings it plans."""
KEPT_SECTIONS = ("failover", "failoverUpkeep", "protection", "scheduler", "commitments")
SLOTS_ANNOTATION = "outlive.dev/required-slots"
"""On ``Cluster/default``: the slots that every VM needs since a plan with ``-k`` was applied, where no file says."""


def all_sections() -> dict[str, type[msgspec.Struct]]:
    """Every section of ``outlive.yaml``."""
    from outlive.api import ApiSettings
    from outlive.roles import SECTIONS

    return {"api": ApiSettings, **SECTIONS}


def host_sections() -> dict[str, type[msgspec.Struct]]:
    """Every section of a host's ``node.yaml``."""
    from outlive.cli.node_settings import SECTIONS

    return dict(SECTIONS)


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
    from outlive.runtime import load_settings

    return load_settings(all_sections(), file=file, environ=os.environ, flags=flags or {})


async def effective_settings(access: Access, store: Store, given: Path | None = None) -> RoleSettings:
    """The settings by which a command answers about the cluster of ``access``; ``given``: the file of ``--config``.

    ``Refused`` where a server reads VMs from a database whose address is not known here.
    """
    if given is not None:
        if access.address:
            print(f"outlive: by the settings of {given}, not by those of {access.source}", file=sys.stderr)
        return await settings_for(store, given)
    if access.address:
        return await _served_settings(access, store)
    return await settings_for(
        store, None if access.state is not None or access.direct else config_file(None, access.directory)
    )


async def served_sections(store: Store) -> dict[str, dict[str, Any]]:
    """The settings by which the server plans, by section. Errors of the store."""
    from outlive.store import HttpStore

    assert isinstance(store, HttpStore), "a server is asked over HTTP"
    answer: dict[str, dict[str, Any]] = await store.question(SETTINGS_PATH)
    return answer


async def _served_settings(access: Access, store: Store) -> RoleSettings:
    from outlive.roles import role_settings
    from outlive.runtime import load_settings

    flags = _to_flags(await served_sections(store))
    if flags.get(VM_SOURCE) == "database":
        if access.own_server(access.address) is None:
            raise Refused(
                "the VMs come from a database, whose address the server tells nobody",
                place=VM_SOURCE,
                remedy="ask on the server's machine, or give --config FILE with failoverUpkeep.databaseUrl",
            )
        upkeep = load(config_file(None, access.directory))["failoverUpkeep"]
        flags |= {
            "failoverUpkeep.databaseUrl": upkeep.database_url,
            "failoverUpkeep.dataSources": upkeep.data_sources,
        }
    return role_settings(load_settings(all_sections(), file=None, environ={}, flags=flags))


VM_SOURCE = "failoverUpkeep.vmSource"


async def settings_for(store: Store, file: Path | None) -> RoleSettings:
    """The settings by which a command answers about a store that no server serves."""
    from outlive.resources import Cluster
    from outlive.roles import role_settings
    from outlive.runtime import load_settings

    deciding = ("FAILOVER", "FAILOVER_UPKEEP", "PROTECTION", "SCHEDULER", "COMMITMENTS")
    prefixes = tuple(f"OUTLIVE_{name}__" for name in deciding)
    if file is None and not any(name.upper().startswith(prefixes) for name in os.environ):
        try:
            cluster = await store.get(Cluster, CLUSTER)
        except NotFound:
            return role_settings(load(None))
        kept = cluster.metadata.annotations.get(SETTINGS_ANNOTATION)
        if kept:
            try:
                flags = _to_flags(msgspec.json.decode(kept, type=dict[str, dict[str, Any]]))
            except msgspec.MsgspecError:
                place = f"Cluster/default: annotation {SETTINGS_ANNOTATION}"
                raise BadInput("is not what a server writes", place=place, remedy="start outlive up once") from None
            return role_settings(load_settings(all_sections(), file=None, environ={}, flags=flags))
    return role_settings(await with_remembered_slots(store, load(file)))


async def with_remembered_slots(store: Store, sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections, with the slots of the last plan that was applied with ``-k`` where no file or variable says."""
    k = await _remembered_slots(store)
    return dict(sections) if k is None or _written_requirements(sections) is not None else _with_slots(sections, k)


async def remember_slots(access: Access, store: Store, given: Path | None, k: int) -> None:
    """Make ``-k`` of a plan that is applied a setting of this cluster.

    ``Refused`` where the settings would contradict it: what the plan does would be undone by the next cycle.
    """
    from outlive.failover import DEFAULT_REQUIREMENTS

    wanted = {"*": k}
    effective = await effective_settings(access, store, given)
    if effective.failover.requirements == wanted and not effective.protection.levels:
        return
    if access.address:
        raise _undone_refusal("the running server does", k)
    sections = load(config_file(given, access.directory))
    before = await _remembered_slots(store)
    said = _written_requirements(sections)
    if said is None and effective.failover.requirements not in (DEFAULT_REQUIREMENTS, {"*": before}):
        said = effective.failover.requirements
    if effective.protection.levels or said not in (None, wanted):
        raise _undone_refusal("the settings do", k)
    annotations = {SLOTS_ANNOTATION: str(k), SETTINGS_ANNOTATION: stored_settings(_with_slots(sections, k))}
    await _annotate(store, access.clock, annotations)


def _undone_refusal(who: str, k: int) -> Refused:
    return Refused(
        f"{who} not ask for {k} slots of every VM, so that what this plan changes would be undone",
        place="-k",
        remedy=f"set failover.flavorFailoverRequirements (or protection) in outlive.yaml to {{'*': {k}}}, "
        "restart outlive up where it runs, and plan without -k",
    )


async def _remembered_slots(store: Store) -> int | None:
    from outlive.resources import Cluster
    from outlive.store import read

    found = await read(store, Cluster, CLUSTER)
    text = found.metadata.annotations.get(SLOTS_ANNOTATION, "") if found is not None else ""
    return int(text) if text.isdecimal() and len(text) < 3 else None


def _written_requirements(sections: Mapping[str, Any]) -> dict[str, int] | None:
    """Pattern → slots, as somebody has written it; ``None`` where nobody has."""
    written: dict[str, int] | None = sections["failover"].flavor_failover_requirements
    return written


def _with_slots(sections: Mapping[str, Any], k: int) -> dict[str, Any]:
    failover = msgspec.structs.replace(sections["failover"], flavor_failover_requirements={"*": k})
    return {**sections, "failover": failover}


def served_settings(sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a server says of the settings by which it plans, by section; nothing that may hold a secret."""
    from outlive.failover import SECRET_KEYS
    from outlive.runtime import encode_unit

    told = {name: msgspec.to_builtins(sections[name], enc_hook=encode_unit) for name in KEPT_SECTIONS}
    for section in told.values():
        for key in SECRET_KEYS & section.keys():
            del section[key]
    return {**told, "openstack": {"cloud": sections["openstack"].cloud}}


def stored_settings(sections: Mapping[str, Any]) -> str:
    """What a server keeps with the cluster of its settings, as JSON; readers without it have no database to ask."""
    kept = served_settings(sections)
    if kept["failoverUpkeep"].get("vmSource") == "database":
        del kept["failoverUpkeep"]["vmSource"]
    return msgspec.json.encode(kept).decode()


def _to_flags(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Section and key → value, as flags name them."""
    flags: dict[str, Any] = {}
    for name, section in sections.items():
        kind = all_sections().get(name)  # another version may have sections and keys that this one does not know
        known = {field.encode_name for field in msgspec.structs.fields(kind)} if kind is not None else set()
        flags |= {f"{name}.{key}": value for key, value in section.items() if key in known}
    return flags


async def store_settings(store: Store, clock: Clock, sections: Mapping[str, Any]) -> None:
    """Keep a server's settings of failover with ``Cluster/default``, which is made if it is missing."""
    await _annotate(store, clock, {SETTINGS_ANNOTATION: stored_settings(sections)})


async def _annotate(store: Store, clock: Clock, annotations: Mapping[str, str]) -> None:
    from outlive.resources import Cluster, ObjectMeta
    from outlive.store import compare_and_swap

    def add_annotations(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        meta = msgspec.structs.replace(one.metadata, annotations={**one.metadata.annotations, **annotations})
        return msgspec.structs.replace(one, metadata=meta)

    await compare_and_swap(store, Cluster, CLUSTER, add_annotations, clock=clock, half="spec")
