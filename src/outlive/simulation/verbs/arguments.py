"""How verbs read their arguments, which were checked when the timeline was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from outlive.base.errors import BadInput
from outlive.runtime.virtual import outside_parts

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

Arguments = Mapping[str, Any]


def hosts_in(world: World, given: Arguments) -> list[SimHost]:
    """The hosts that are named, one by one or as a failure domain; ``BadInput`` names one that is not there."""
    names = world.domains_of(given["domain"]) if "domain" in given else texts(given, "hosts", "host")
    for name in names:
        if name not in world.hosts:
            raise BadInput(f"there is no host {name}", remedy=f"hosts are {', '.join(world.hosts)}")
    return [world.hosts[name] for name in names]


def texts(given: Arguments, *names: str) -> tuple[str, ...]:
    """A list of words, or one word, under the first of these names that is there."""
    for name in names:
        value = given.get(name)
        if isinstance(value, str):
            return (value,)
        if value is not None:
            return tuple(value)
    return ()


def text(given: Arguments, name: str, default: str = "") -> str:
    """One word."""
    return str(given.get(name, default))


def number(given: Arguments, name: str, default: float = 0.0) -> float:
    """A number, or a duration in seconds."""
    return float(given.get(name, default))


def after(given: Arguments, then: Callable[[], object]) -> None:
    """Call ``then`` after the time in ``for``, where there is one."""
    if given.get("for"):
        asyncio.get_running_loop().call_later(float(given["for"]), then, context=outside_parts())
