"""``outlive.yaml`` as plain values, together with the line of each key.

A file that is broken, too large, too deep, or says a key twice is refused with the line; anchors may be used, but
what they unfold to is limited.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from outlive.base.errors import BadInput, LimitExceeded, NotFound

FILE_BYTES: Final = 1024 * 1024
"""The largest configuration file."""
DEPTH_LIMIT: Final = 16
"""How deep its values may be nested."""
NODES_LIMIT: Final = 100_000
"""How many values it may hold, anchors unfolded."""

Path_ = tuple[str, ...]


def read_settings_file(file: Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    """The file's values, and the line of every key by its path. ``BadInput``, ``NotFound`` or ``LimitExceeded``."""
    place = str(file)
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound("no such configuration file", place=place, remedy="give another --config") from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", place=place, remedy="make it readable") from None
    if len(raw) > FILE_BYTES:
        raise LimitExceeded(f"is larger than {FILE_BYTES} bytes", place=place, remedy="this is no configuration file")
    return parse_settings(raw, place)


def parse_settings(raw: bytes, place: str) -> tuple[dict[str, Any], dict[Path_, int]]:
    """As ``read_settings_file``, of bytes that came from ``place``."""
    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = loader_class(raw.decode())
        try:
            node = loader.get_single_node()
            if node is None:
                return {}, {}
            lines: dict[Path_, int] = {}
            _Walk(place, lines).visit(node, (), 0)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 at byte {error.start}", place=place, remedy="save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        raise BadInput(f"is not YAML: {error.problem}", place=where, remedy="mind indentation and quotes") from None
    except (yaml.YAMLError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise BadInput(f"is not YAML: {first}", place=place, remedy="mind indentation and quotes") from None
    except RecursionError:
        raise BadInput("is nested too deeply", place=place, remedy=f"at most {DEPTH_LIMIT} levels") from None
    if not isinstance(value, dict):
        raise BadInput(f"holds {type(value).__name__}, not sections", place=place, remedy="write section: and keys")
    return value, lines


class _Walk:
    """Finds the line of each key, and what no configuration file holds."""

    def __init__(self, place: str, lines: dict[Path_, int]) -> None:
        self._place = place
        self._lines = lines
        self._nodes = 0

    def visit(self, node: Any, path: Path_, depth: int) -> None:
        self._nodes += 1
        where = f"{self._place}:{node.start_mark.line + 1}"
        if self._nodes > NODES_LIMIT:
            raise LimitExceeded(f"holds more than {NODES_LIMIT} values", place=where, remedy="use fewer anchors")
        if depth > DEPTH_LIMIT:
            raise BadInput("is nested too deeply", place=where, remedy=f"at most {DEPTH_LIMIT} levels")
        if isinstance(node, yaml.SequenceNode):
            for child in node.value:
                self.visit(child, path, depth + 1)
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, depth)

    def _visit_mapping(self, node: Any, path: Path_, depth: int) -> None:
        seen: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            where = f"{self._place}:{line}"
            if not isinstance(key, yaml.ScalarNode):
                raise BadInput("a key is not text", place=where, remedy="write key: value")
            name = str(key.value)
            if name in seen and name != "<<":
                raise BadInput(f"{name!r} was said in line {seen[name]} already", place=where, remedy="say it once")
            seen[name] = line
            self._lines.setdefault((*path, name), line)
            self.visit(child, (*path, name), depth + 1)
