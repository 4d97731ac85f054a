"""What a user wrote, JSON or YAML, as plain values with the line that each document begins on.

Whoever reads a file names its place in every complaint, and reports all problems of a file at once
(``Problems``), so that nobody repairs an inventory one line per run. Nothing here knows any kind. YAML is
the safe subset: no tags that build objects, no duplicate keys, and aliases cannot blow a small file up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml  # type: ignore[import-untyped]

from outlive.base.errors import BadInput

PROBLEMS_SHOWN: Final = 20
"""Problems of one input that are reported one by one; the rest is a count."""
DOCUMENT_NODES: Final = 1_000_000
"""Values in all documents of one YAML file, aliases counted as often as they are used."""
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
        documents = list(_yaml_documents(raw, place))
    return [part for document in documents for part in _unlisted(document)]


def _unlisted(document: Document) -> list[Document]:
    value = document.value
    if not isinstance(value, dict):
        return [document]
    kind = str(value.get("kind", ""))
    if kind.endswith("List") and isinstance(value.get("items"), list):
        return [Document(f"{document.place}: items[{i}]", item) for i, item in enumerate(value["items"])]
    if kind == "State" and isinstance(value.get("objects"), list):
        return [Document(f"{document.place}: objects[{i}]", item, True) for i, item in enumerate(value["objects"])]
    return [document]


def _yaml_documents(raw: bytes, place: str) -> Iterator[Document]:
    try:
        loader = yaml.CSafeLoader(raw)
        try:
            budget = DOCUMENT_NODES
            while loader.check_node():
                node = loader.get_node()
                line = node.start_mark.line + 1
                budget -= _check_node(node, place, budget)
                value = loader.construct_document(node)
                if value is not None:
                    yield Document(f"{place}:{line}", value)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise BadInput(f"not YAML: {what}", place=f"{place}:{line}", remedy="check indentation and quotes") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())[:200]
        raise BadInput(f"not YAML: {text}", place=f"{place}:1", remedy="write UTF-8 text") from None


def _check_node(node: Any, place: str, budget: int) -> int:
    """Number of values below the node; refuses duplicate keys, loops of aliases, and more values than the budget."""
    count = 0
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        count += 1
        if count > budget:
            raise BadInput(f"more than {DOCUMENT_NODES} values", place=place, remedy="split the file; avoid aliases")
        if isinstance(item, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in item.value:
                name = str(key.value)
                if name in keys and name != "<<":
                    at = f"{place}:{key.start_mark.line + 1}"
                    raise BadInput(f"key {name[:80]!r} is there twice", place=at, remedy="keep one of them")
                keys.add(name)
                stack.append(value)
        elif isinstance(item, yaml.SequenceNode):
            stack.extend(item.value)
    return count
