"""Settings: from flags, the environment and ``outlive.yaml`` to one checked struct for each section.

Flags count more than ``OUTLIVE_<SECTION>__<KEY>`` in the environment, and that more than the file. A section is a
``msgspec.Struct`` that its package declares; nothing here knows what a key means. Whatever is wrong, an unknown
section, an unknown key, a value of the wrong type or out of its range, is one ``BadInput`` that names the key, where
it was said, and the nearest key that exists (docs/reference/runtime.md#configuration). ``reference_page`` describes all
sections; what a key means is the ``description`` of its ``msgspec.Meta`` or else the docstring below the field.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml  # type: ignore[import-untyped]

from outlive.base import BadInput, LimitExceeded, NotFound, check_private
from outlive.resources import Problems, field_docs
from outlive.runtime.units import Duration, Size, decode_unit, encode_unit
from outlive.runtime.validation import (
    ENVIRONMENT_PREFIX,
    SEPARATOR,
    Mistake,
    environment_name,
    find_mistakes,
    path_text,
    struct_in,
)

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


__all__ = ["Duration", "Size", "environment_name", "load_settings", "reference_page"]

ENTRY: Final = "NAME"
"""Stands in the reference for the name of each entry of a map."""
SHOWN_CHARACTERS: Final = 80
"""How much of a wrong value an error shows."""

_SECRET = re.compile(r"token|password|secret", re.IGNORECASE)
"""Keys whose values no error shows."""
_CREDENTIAL = re.compile(r"(token|password)\Z", re.IGNORECASE)
"""Keys whose values are secrets; that of others is a file, or the name of a ``Secret``."""
_IN_URL = re.compile(r"://[^/?#\s]*:[^/?#\s]*@|[?&]\w*password=", re.IGNORECASE)
"""A password in an address."""


def load_settings(
    sections: Mapping[str, type[msgspec.Struct]],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> dict[str, Any]:
    """One struct for each section, all sections filled. ``flags`` maps ``section.key`` to a value, ``None``: not given.

    Raises ``BadInput`` (also for a broken file), ``NotFound`` for a file that is not there, ``LimitExceeded``.
    """
    said = _RawSettings(sections)
    if file is not None:
        said.take_file(file)
    said.take_environment(environ)
    said.take_flags(flags)
    built = {name: said.build(name) for name in sections}
    said.problems.check()
    return built


class _RawSettings:
    """Everything that was said, by whom: raw values by section and key, and the place of each."""

    def __init__(self, sections: Mapping[str, type[msgspec.Struct]]) -> None:
        self._sections = sections
        self._values: dict[str, Any] = {}
        self._places: dict[Path_, str] = {}
        self.problems = Problems()
        """What is wrong, all of it; checked in the end."""

    def take_file(self, file: Path) -> None:
        values, lines = read_settings_file(file)
        if _holds_secret(values):
            check_private(file, limit=FILE_BYTES)
        for path, line in lines.items():
            self._places[path] = f"{file}:{line}"
        for section, value in values.items():
            place = self._places.get((str(section),), str(file))
            struct = self._sections.get(section)
            if struct is None:
                self._note(_unknown_error("section", str(section), self._sections, place))
                continue
            if value is None:
                continue
            if not isinstance(value, dict):
                self._note(
                    BadInput(f"section {section} is {_shorten_value(value)}", place=place, remedy="write keys below it")
                )
                continue
            self._values[section] = value

    def take_environment(self, environ: Mapping[str, str]) -> None:
        origin: dict[Path_, str] = {}
        for variable in sorted(environ):
            if not variable.startswith(ENVIRONMENT_PREFIX) or SEPARATOR not in variable:
                continue
            words = variable[len(ENVIRONMENT_PREFIX) :].split(SEPARATOR)
            try:
                path, kind = self._resolve(words, variable)
            except BadInput as error:
                self._note(error)
                continue
            other = origin.get(path)
            if other is not None and environ[other] != environ[variable]:
                text = f"{other} and {variable} say different things"
                self._note(BadInput(text, place=variable, remedy="set one of them"))
                continue
            origin[path] = variable
            self._put(path, _from_text(environ[variable], kind), variable)

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        for dotted, value in flags.items():
            if value is None:
                continue
            place = f"flag {dotted}"
            try:
                path, kind = self._resolve(dotted.split("."), place)
            except BadInput as error:
                self._note(error)
                continue
            self._put(path, _from_text(value, kind) if isinstance(value, str) else value, place)

    def build(self, section: str) -> Any:
        """The section's struct; ``None`` where something is wrong with it, which is noted."""
        kind, said = self._sections[section], self._values.get(section, {})
        kinds = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        # a null where none is allowed counts as nothing said
        given: dict[str, Any] = {}
        for key, value in said.items():
            type_ = kinds.get(key, Any)
            if value is not None or type_ is Any or type(None) in typing.get_args(type_):
                given[key] = value
        try:
            return msgspec.convert(given, kind, dec_hook=decode_unit)
        except msgspec.ValidationError:
            for one in find_mistakes(given, kind, dec_hook=decode_unit):
                self._note(self._explain_mistake(section, given, one))
        except BadInput as error:
            place = self._places.get((section,), "")
            self._note(BadInput(error.message, place=error.place or place or section, remedy=error.remedy))
        return None

    def _note(self, error: BadInput) -> None:
        self.problems.add(error.place, error.message, error.remedy)

    def _explain_mistake(self, section: str, given: Any, mistake: Mistake) -> BadInput:
        place = self._place_of(section, tuple(word for word in mistake.at if isinstance(word, str)))
        if mistake.known:
            around = (section, *mistake.at[:-1])
            known = [path_text((*around, name)) for name in mistake.known]
            return _unknown_error("key", path_text((section, *mistake.at)), known, place)
        value = given
        for word in mistake.at:
            value = value.get(word) if isinstance(value, dict) else value[word]
        shown = "(hidden)" if any(_SECRET.search(str(word)) for word in mistake.at) else _shorten_value(value)
        what = f"{path_text((section, *mistake.at))} is {shown}" if mistake.at else f"section {section}"
        return BadInput(f"{what}: {mistake.text}", place=place, remedy="see docs/reference/configuration.md")

    def _place_of(self, section: str, keys: Path_) -> str:
        """Where the value was given, or what is around it; of the section as a whole its only key, if it has one."""
        if not keys:
            of_keys = {place for path, place in self._places.items() if path[0] == section and len(path) > 1}
            if len(of_keys) == 1:
                return of_keys.pop()
        path = (section, *keys)
        return next((self._places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._places), "")

    def _resolve(self, words: list[str], place: str) -> tuple[Path_, Any]:
        """The path of wire names that these words mean, ignoring case and underscores, and the type there."""
        section = _match(words[0], self._sections)
        if section is None:
            raise _unknown_error("section", words[0], self._sections, place)
        path: Path_ = (section,)
        kind: Any = self._sections[section]
        for word in words[1:]:
            struct = struct_in(kind)
            if struct is None:
                raise BadInput(f"{'.'.join(path)} has no keys of its own", place=place, remedy="set it as a whole")
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
            name = _match(word, fields)
            if name is None:
                raise _unknown_error(
                    "key", f"{'.'.join(path)}.{word}", [f"{'.'.join(path)}.{each}" for each in fields], place
                )
            path, kind = (*path, name), fields[name]
        if len(path) < 2:
            raise BadInput(f"{section} is a section", place=place, remedy="name a key in it")
        return path, kind

    def _put(self, path: Path_, value: Any, place: str) -> None:
        target = self._values
        for word in path[:-1]:
            inner = target.get(word)
            target[word] = dict(inner) if isinstance(inner, dict) else {}
            target = target[word]
        target[path[-1]] = value
        for known in [each for each in self._places if each[: len(path)] == path]:
            del self._places[known]
        self._places[path] = place


def _holds_secret(value: Any, key: str = "") -> bool:
    """Whether values of a file hold a credential, such as a token, or an address with a password in it."""
    if isinstance(value, dict):
        return any(_holds_secret(inner, str(name)) for name, inner in value.items())
    if isinstance(value, list):
        return any(_holds_secret(inner, key) for inner in value)
    return isinstance(value, str) and bool(value) and bool(_CREDENTIAL.search(key) or _IN_URL.search(value))


def _from_text(text: str, kind: Any) -> Any:
    """Text as the field's type has it: as it is, as YAML, as a list with commas, or as a loosely written number.

    Where none of them fits, the YAML value is given back for the error to show.
    """
    readings: list[Any] = [text]
    try:
        readings.append(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        readings.append(text)
    if text:
        readings.append([part.strip() for part in text.split(",")])
    for reading in readings:
        try:
            msgspec.convert(reading, kind, dec_hook=decode_unit)
        except (msgspec.ValidationError, BadInput):
            continue
        return reading
    try:
        return msgspec.to_builtins(msgspec.convert(text, kind, strict=False, dec_hook=decode_unit), enc_hook=str)
    except (msgspec.ValidationError, BadInput):
        return text


def _match(word: str, names: Mapping[str, Any]) -> str | None:
    """The name that the word is, ignoring case and underscores; an exact one first."""
    if word in names:
        return word
    plain = _normalise_word(word)
    return next((name for name in names if _normalise_word(name) == plain), None)


def _normalise_word(word: str) -> str:
    return word.replace("_", "").lower()


def _unknown_error(what: str, name: str, known: Mapping[str, Any] | list[str], place: str) -> BadInput:
    by_plain = {_normalise_word(each): each for each in known}
    near = difflib.get_close_matches(_normalise_word(name), by_plain, n=1, cutoff=0.5)
    remedy = f"did you mean {by_plain[near[0]]}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
    return BadInput(f"{what} {name[:SHOWN_CHARACTERS]!r} is not known", place=place, remedy=remedy)


def _shorten_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


_INTRODUCTION = """\
# Settings

<!-- Generated from the code; do not edit. -->

Settings come from `outlive.yaml`, from variables and from flags; a flag counts more than a variable, and a variable
more than the file. The variable of `tlsKey` in section `api` is `OUTLIVE_API__TLS_KEY`, with `__` for each dot:
`OUTLIVE_COMMITMENTS__LIQUID_POLICY__PROJECTS`. Keys below an entry of a map (`NAME`) have none. An unknown section or
key is an error.

After a key stands its default or its type, or the values to choose from, the default first; a key without either is
text and empty. Durations are such as `90s`, `5m`, sizes such as `4Mi`. `outlive config timings` shows every interval
and limit of time, also those that are no settings.
"""


_HOSTS = """\
# Settings of a host

A host with Outlive's daemon has a file of its own, `/etc/outlive/node.yaml` ([host daemon](../how-to/host-daemon.md)).
It has the sections `node` and `log` of those above, and the following ones.
"""


def reference_page(
    sections: Mapping[str, type[msgspec.Struct]], hosts: Mapping[str, type[msgspec.Struct]] | None = None
) -> str:
    """All sections as markdown, a list each: key, type, default, meaning. ``hosts``: those of a host."""
    page = "\n".join([_INTRODUCTION, *_render_sections(sections)])
    only = {name: struct for name, struct in (hosts or {}).items() if sections.get(name) is not struct}
    return "\n".join([page, _HOSTS, *_render_sections(only)]) if only else page


def _render_sections(sections: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    for section, struct in sections.items():
        about = _link_pages(inspect.cleandoc(struct.__doc__ or "").replace("``", "`"))
        about = SECTION_NAMED.sub("", about)
        head = [about[0].upper() + about[1:], ""] if about else []
        yield "\n".join([f"## {section}", "", *head, *_render_keys(struct, (), {})]) + "\n"


def _render_keys(struct: type[msgspec.Struct], path: Path_, shown: dict[type, str]) -> Iterator[str]:
    """A line for each key; ``shown`` has the structs whose keys were listed already, and where."""
    docs = field_docs(struct)
    of_base = (
        {field.name for field in msgspec.structs.fields(_find_base(struct))} if _find_base(struct) in shown else set()
    )
    if of_base:
        yield f"- `{'.'.join(path)}`: the keys {_join_names(_find_base(struct))} as in `{shown[_find_base(struct)]}`."
    for field in msgspec.structs.fields(struct):
        if field.name in of_base:
            continue
        here = (*path, field.encode_name)
        key = ".".join(here)
        if (nested := struct_in(field.type)) is not None:
            if nested in shown:
                yield f"- `{key}`: the keys {_join_names(nested)} as in `{shown[nested]}`."
                continue
            yield from _render_keys(nested, here, shown)
            continue
        kind, default = _type_name(field.type), _format_default(field)
        words, word = kind.split(", "), default.removeprefix("default ")
        if kind.startswith("`") and word in words:  # the default is the first of the words to choose from
            kind, default = ", ".join([word, *(one for one in words if one != word)]), ""
        notes = [note for note in ("" if default and kind in SHOWN_BY_DEFAULTS else kind, default) if note]
        about = f" ({', '.join(notes)})".replace(" (default ", " (") if notes else ""
        text = _find_description(field.type) or docs.get(field.name, "")
        yield f"- `{key}`{about}: {_link_pages(' '.join(text.split()).replace('``', '`'))}"
        if typing.get_origin(field.type) is dict and (entry := struct_in(typing.get_args(field.type)[1])) is not None:
            yield from _render_keys(entry, (*here, ENTRY), shown)
    if path:
        shown.setdefault(struct, ".".join(path))
        shown.setdefault(_find_base(struct), ".".join(path))


def _find_base(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct that a struct has its first keys from."""
    return struct.__mro__[1]


def _join_names(struct: type[msgspec.Struct]) -> str:
    return ", ".join(f"`{field.encode_name}`" for field in msgspec.structs.fields(struct))


def _link_pages(text: str) -> str:
    """The text with links in place of names of pages."""
    linked = re.sub(r"docs/([\w/-]+)\.md(#[\w-]+)?", r"[\1](../\1.md\2)", text)
    return linked.replace("](../reference/", "](")


def _find_description(kind: Any) -> str:
    if typing.get_origin(kind) is not Annotated:
        return ""
    for note in typing.get_args(kind)[1:]:
        if isinstance(note, msgspec.Meta) and note.description:
            return note.description
    return ""


def _format_default(field: Any) -> str:
    """The default as the page shows it; empty: it is nothing."""
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    if value is None or value in ("", [], {}, ()):
        return ""
    is_text = isinstance(value, Duration | Size | str)
    shown = str(value) if is_text else msgspec.json.encode(value, enc_hook=encode_unit).decode()
    return f"default `{shown}`" if len(shown) <= SHOWN_CHARACTERS else ""


def _type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    if origin in (typing.Union, UnionType):
        return " or ".join(filter(None, (_type_name(each) for each in arguments if each is not NoneType)))
    if struct_in(kind) is not None:
        return ""
    if origin in (list, tuple):
        return f"list of {_type_name(arguments[0])}".removesuffix(" of ")
    if origin is dict:
        return f"map of {_type_name(arguments[1])}".removesuffix(" of ")
    return _PLAIN_TYPES.get(kind, getattr(kind, "__name__", str(kind)))


SECTION_NAMED: Final = re.compile(r"^(The s|S)ection `[\w.]+`( of a (host|coordinator)'s configuration)?[:.]\s*")
"""What the heading of a section says already."""
SHOWN_BY_DEFAULTS: Final = {"whole number", "number", "true or false", "duration", "size", "list"}
"""Types that a default shows."""
_PLAIN_TYPES: Mapping[Any, str] = {
    str: "",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Duration: "duration",
    Size: "size",
}
