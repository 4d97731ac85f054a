"""What a user wrote, JSON or YAML, as plain values with the line that each document begins on.

A reader of a file names its place in every complaint, and reports all problems of a file at once
(``Problems``), so that nobody repairs an inventory one line per run. Nothing here knows any kind. YAML is
the safe subset of ``yaml_documents``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from outlive.base import OBJECT_VALUES, BadInput
from outlive.resources.yaml_documents import YamlLimits, read_yaml

PROBLEMS_SHOWN: Final = 20
"""Problems of one input that are reported one by one; the rest is a count."""
_BYTE = re.compile(r"\s*\(byte (\d+)\)")


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with an input: where, what, and what to do."""

    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        """One line."""
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.message}" + (f" ({self.remedy})" if self.remedy else "")


class BadInputs(BadInput):
    """Several problems of one input. The message is the first; ``problems`` has all that are shown."""

    def __init__(self, problems: tuple[Problem, ...], total: int) -> None:
        first = problems[0]
        super().__init__(first.message, place=first.place, remedy=first.remedy)
        self.problems = problems
        self.total = total


class Problems:
    """Collects problems up to a limit and counts the rest."""

    def __init__(self) -> None:
        self.shown: list[Problem] = []
        self.total = 0
        self.places: set[str] = set()
        """Of all of them."""

    def add(self, place: str, message: str, remedy: str = "") -> None:
        """Note a problem."""
        self.total += 1
        self.places.add(place)
        if len(self.shown) < PROBLEMS_SHOWN:
            self.shown.append(Problem(place, message, remedy))

    def extend(self, shown: Sequence[Problem], total: int, places: Iterable[str]) -> None:
        """Note the problems of somebody else: those that are shown, how many there are, and where all of them are."""
        self.total += total
        self.places.update(places)
        self.shown += shown[: max(0, PROBLEMS_SHOWN - len(self.shown))]

    def take(self, place: str, error: BadInput, remedy: str = "") -> None:
        """Note an error that some parser raised about a value at ``place``; ``remedy`` is for one that has none."""
        self.add(f"{place}: {error.place}" if error.place else place, error.message, error.remedy or remedy)

    def check(self) -> None:
        """Raise ``BadInputs`` if there is any."""
        if self.shown:
            raise BadInputs(tuple(self.shown), self.total)


class Document(msgspec.Struct, frozen=True):
    """One document of a file, and the line that it begins on."""

    place: str
    value: Any
    of_state: bool = False
    """Whether it stood in a state file: then its status half counts, and its versions are those of another store."""


def parse_json(raw: bytes, place: str) -> Any:
    """The value of a JSON file; ``BadInput`` names the line."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, line = json_error(error, raw)
        raise BadInput(f"not JSON: {message}", place=f"{place}:{line}", remedy="repair or re-create the file") from None


def json_error(error: Exception, raw: bytes) -> tuple[str, int]:
    """A JSON decoder's complaint without its byte offset, and the line that the offset is on."""
    text = str(error)
    match = _BYTE.search(text)
    if match is None:
        return text, raw.count(b"\n") + 1 if raw.strip() else 1
    offset = int(match.group(1))
    return _BYTE.sub("", text), raw.count(b"\n", 0, offset) + 1


def parse_documents(raw: bytes, place: str) -> list[Document]:
    """All documents of a YAML file (JSON is YAML), empty ones left out; lists and state files are taken apart."""
    documents: list[Document] = []
    if raw.lstrip()[:1] == b"{":
        documents = [Document(f"{place}:1", parse_json(raw, place))]
    else:
        read = read_yaml(raw, place, YamlLimits())
        documents = [Document(f"{place}:{one.line}", one.value) for one in read if one and one.value is not None]
    return [part for document in documents for part in _split_list(document)]


async def parse_request(raw: bytes) -> list[Any]:
    """The documents of a request's body, JSON or YAML, empty ones left out. Reading a long text yields to others on the
    event loop; aliases are refused, since nothing that sends requests writes them. ``BadInput`` as for a file."""
    if raw.lstrip()[:1] == b"{":
        return [parse_json(raw, "body")]
    values: list[Any] = []
    for read in read_yaml(raw, "body", YamlLimits(values=OBJECT_VALUES, aliases=False)):
        if read is None:
            await asyncio.sleep(0)
        elif read.value is not None:
            values.append(read.value)
    return values


def _split_list(document: Document) -> list[Document]:
    value = document.value
    if not isinstance(value, dict):
        return [document]
    kind = str(value.get("kind", ""))
    if kind.endswith("List") and isinstance(value.get("items"), list):
        return [Document(f"{document.place}: items[{i}]", item) for i, item in enumerate(value["items"])]
    if kind == "State" and isinstance(value.get("objects"), list):
        return [Document(f"{document.place}: objects[{i}]", item, True) for i, item in enumerate(value["objects"])]
    return [document]
