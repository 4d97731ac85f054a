"""The table of verbs, which each verb enters itself into.

A verb says its word and the sentence that a story prints. Its signature says which arguments a timeline may give it:
msgspec checks them when the timeline is read. ``host`` in a signature is each host that is named by ``host``, ``hosts``
or ``domain``.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from outlive.runtime import Duration, outside_parts

Act = Callable[..., Awaitable[None] | None]
F = TypeVar("F", bound=Act)
Name = Annotated[str, Meta(min_length=1)]
Names = Annotated[tuple[Name, ...], Meta(min_length=1)]
Domain = Annotated[str, Meta(pattern=r"^[^=]+=.")]
Share = Annotated[float, Meta(ge=0, le=1)]

WHERE: Final = ("host", "hosts", "domain")
"""Exactly one of them names the hosts to each of which a verb is done."""
VERBS: Final[dict[str, Verb]] = {}
"""All verbs by their words."""


class Verb(NamedTuple):
    """Something that can happen to a virtual cluster."""

    act: Act
    sentence: str
    """What a story prints of it (``outlive.simulation.narration.sentence``)."""
    arguments: type[msgspec.Struct]
    """What a timeline may give it."""
    each_host: bool
    """Whether it is done to each host that is named."""

    @property
    def usage(self) -> str:
        """Its arguments, with the words of those that are one of some."""
        said = []
        for field in msgspec.structs.fields(self.arguments):
            words = typing.get_args(field.type) if typing.get_origin(field.type) is typing.Literal else ()
            said.append(f"{field.encode_name} ({', '.join(words)})" if words else field.encode_name)
        return f"arguments of {self.arguments.__name__}: {', '.join(said) or 'none'}"

    async def carry_out(self, world: Any, given: Mapping[str, Any], hosts: tuple[str, ...]) -> None:
        """Do it to the world, or to each of these hosts, with arguments as a timeline names them."""
        wires = {field.encode_name: field.name for field in msgspec.structs.fields(self.arguments)}
        arguments = {wires[name]: value for name, value in given.items() if not (self.each_host and name in WHERE)}
        for host in [(one,) for one in world.find_hosts(hosts)] if self.each_host else [()]:
            done = self.act(world, *host, **arguments)
            if done is not None:
                await done


def register_verb(word: str, sentence: str, table: dict[str, Verb] = VERBS) -> Callable[[F], F]:
    """Enter a verb into the table; each kind of world has its own."""

    def enter(act: F) -> F:
        hints = typing.get_type_hints(
            act, localns={"World": Any, "SimHost": Any, "StorageWorld": Any}, include_extras=True
        )
        parameters = list(inspect.signature(act).parameters.values())[1:]
        each_host = "SimHost" in [one.annotation for one in parameters]
        fields: list[Any] = [(name, kind, None) for name, kind in _HOSTS.items() if each_host]
        for one in parameters[1 if each_host else 0 :]:
            required = one.default is one.empty
            fields.append((one.name, hints[one.name]) if required else (one.name, hints[one.name], one.default))
        arguments = msgspec.defstruct(word, fields, forbid_unknown_fields=True, kw_only=True, rename=_wire)
        table[word] = Verb(act, sentence, arguments, each_host)
        return act

    return enter


_HOSTS: Final[Mapping[str, Any]] = {"host": Name | None, "hosts": Names | None, "domain": Domain | None}


def _wire(name: str) -> str:
    """As a timeline writes it: ``leaveVms`` for ``leave_vms``, ``for`` for ``for_``."""
    first, *rest = name.rstrip("_").split("_")
    return "".join([first, *(word.title() for word in rest)])


def call_after(seconds: Duration | None, then: Callable[[], object]) -> None:
    """Call ``then`` after so long, if a time is given."""
    if seconds:
        asyncio.get_running_loop().call_later(seconds, then, context=outside_parts())
