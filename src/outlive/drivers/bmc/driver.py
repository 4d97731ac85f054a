"""What every driver of BMCs is given, and says: one host, one order, one answer."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from outlive.base import Unavailable
from outlive.node.fencing import is_unset, system_key
from outlive.node.ports import PowerReading, PowerRefused

SAID_LENGTH: Final = 200
"""What is quoted of what a controller or a tool says."""
LIMIT_S: Final = 120.0
"""After so long a driver gives up by itself; callers have limits of their own."""


class PowerOrder(StrEnum):
    """What a controller is asked for: one of these in a call."""

    READ = "read"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Credential:
    """The name by which a controller knows its client."""

    username: str = ""
    password: str = field(default="", repr=False)
    addresses: tuple[str, ...] = ()
    """The controllers that may see it; none: any."""


CredentialSource = Callable[[str], Awaitable[Credential]]
"""The credential in the secret of that name; ``Unavailable`` says why nobody has it."""


@dataclass(frozen=True, slots=True)
class BmcTarget:
    """One controller, and how it is reached."""

    host: str
    address: str
    options: dict[str, str]
    secret: str
    credential: Credential
    expected_uuid: str
    """What is recorded of its host's system; it only decides in which order bytes are read."""
    limit_s: float

    def get_option(self, name: str, default: str = "") -> str:
        """What its host's ``spec.fencing.options`` says."""
        return self.options.get(name, default)

    def unavailable_error(self, why: str, remedy: str) -> Unavailable:
        """Nothing happened, and nothing will."""
        return Unavailable(why, remedy=remedy)


class Driver(Protocol):
    """One kind of controller."""

    options: frozenset[str]
    """Names that its host's ``spec.fencing.options`` may have."""

    async def send(self, order: PowerOrder, target: BmcTarget) -> PowerReading | None:
        """Carry out one order; a reading is the answer to ``READ`` only.

        ``Unavailable``: nothing happened, and nothing will. ``Unknown``: it may have been switched.
        """
        ...

    async def check(self, target: BmcTarget) -> str:
        """See ``PowerPort.check``."""
        ...


class Failure(NamedTuple):
    """Words of a tool or a BMC, and what they mean to an operator who has to mend it."""

    words: str
    why: str
    remedy: str
    answered: bool = True
    """Whether the BMC itself said so; else nothing came from it."""


def failure_of(text: str, failures: Iterable[Failure], **given: str) -> Unavailable:
    """The first failure whose words are in the text, in any letter case: ``PowerRefused`` where the BMC answered."""
    folded = text.casefold()
    found = next((one for one in failures if one.words in folded), Failure("", "it failed: {text}", "see its log"))
    kind = PowerRefused if found.answered else Unavailable
    given = {"text": quote_last_line(text), **given}
    return kind(found.why.format(**given), remedy=found.remedy.format(**given))


def quote_last_line(text: str) -> str:
    """The last line of what somebody else printed, without control characters and not too long."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = "".join(one if one.isprintable() else " " for one in lines[-1]) if lines else ""
    return line if len(line) <= SAID_LENGTH else line[: SAID_LENGTH - 1] + "…"


def uuid_of(raw: bytes, expected: str) -> str | None:
    """The uuid in these sixteen bytes, in the order in which it is the one that is expected; ``None``: it is in none.

    IPMI 2.0 (20.8) reverses all of them; most makers write them as SMBIOS has them, or as they are printed, and one
    maker's firmware may change from one to the other. A system whose uuid is another one's in another order of bytes is
    not met by chance.
    """
    for one in (uuid.UUID(bytes=raw), uuid.UUID(bytes_le=raw), uuid.UUID(bytes=raw[::-1])):
        if system_key(str(one)) == system_key(expected) and not is_unset(expected):
            return str(one)
    return None
