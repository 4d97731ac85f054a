"""The table of verbs, which each verb enters itself into, and how verbs read their arguments.

A verb says its word, what a story tells of it, and which arguments a timeline may give it; they are checked when the
timeline is read.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from outlive.base.errors import BadInput
from outlive.runtime.virtual import outside_parts

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

Arguments = Mapping[str, Any]
Act = Callable[[Any, Arguments], Awaitable[None]]


class Kind(enum.StrEnum):
    """What an argument is."""

    HOST = "the name of a host"
    HOSTS = "a list of hosts"
    VM = "the name of a VM"
    VMS = "a list of VMs"
    NAMES = "a list of names"
    TEXT = "text"
    FLAG = "true or false"
    NUMBER = "a number"
    DURATION = 'a duration, such as "30s"'
    JUMP = 'a duration forward or back, such as "1h" or "-1h"'
    DOMAIN = 'a failure domain, such as "rack=r3"'
    CHOICE = "one of its words"
    MAPPING = "keys and values"


class Argument(NamedTuple):
    """One argument of a verb."""

    kind: Kind
    required: bool = False
    words: tuple[str, ...] = ()
    least: float = -inf
    most: float = inf
    """Limits of a number."""


class Verb(NamedTuple):
    """Something that can happen to a virtual cluster."""

    act: Act
    sentence: str
    """What a story tells of it (``outlive.simulation.narration.sentence``)."""
    arguments: Mapping[str, Argument]
    one_of: tuple[str, ...] = ()
    """Exactly one of these arguments must be there."""


HOSTS: Final = Argument(Kind.HOSTS, True)
SOME_HOSTS: Final = Argument(Kind.HOSTS)
HOST: Final = Argument(Kind.HOST, True)
VM: Final = Argument(Kind.VM, True)
VMS: Final = Argument(Kind.VMS, True)
FOR: Final = Argument(Kind.DURATION)
JUMP: Final = Argument(Kind.JUMP)
DOMAIN: Final = Argument(Kind.DOMAIN)
TEXT: Final = Argument(Kind.TEXT)
NETWORK: Final = Argument(Kind.CHOICE, True, ("store", "storage", "bmc", "vm"))
WHERE: Final = ("hosts", "domain")

VERBS: Final[dict[str, Verb]] = {}
"""All verbs by their words."""


def verb(
    word: str, sentence: str, arguments: Mapping[str, Argument] | None = None, *, one_of: tuple[str, ...] = ()
) -> Callable[[Act], Act]:
    """Enter a verb into the table."""

    def enter(act: Act) -> Act:
        VERBS[word] = Verb(act, sentence, arguments or {}, one_of)
        return act

    return enter


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
