"""How the texts of a command line become values: words, whole numbers, truths, paths and choices.

typer has pydantic do this, which takes longer to import than most commands to answer, and speaks of types in its
messages. What is of none of these types is left to typer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

TRUE_WORDS: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "f", "no", "n", "off", ""})


class ParameterValues(NamedTuple):
    """Converts the value, or each of several, of one parameter; stands in the place of typer's ``RuntimeParam``."""

    convert: Callable[[Any], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the parameter; ``typer.BadParameter`` says what to write."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        try:
            return [self.convert(one) for one in value] if several else self.convert(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


class PlainCommand(TyperCommand):
    """A command whose parameters are converted here where that is possible."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` among them."""
        return [_set_converter(parameter) for parameter in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """The same of a group's own parameters."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` among them."""
        return [_set_converter(parameter) for parameter in super().get_params(ctx)]


def _set_converter(parameter: Any) -> Any:
    """The parameter; ``get_runtime_param`` is what typer calls for what converts its values."""
    descriptor = getattr(parameter, "type_descriptor", None)
    convert = find_converter(descriptor.annotation, descriptor.parameter_info) if descriptor is not None else None
    if convert is not None:
        values = ParameterValues(convert)
        parameter.get_runtime_param = lambda: values
    return parameter


def find_converter(annotation: Any, settings: Any) -> Callable[[Any], Any] | None:
    """What converts a text to that type with these settings of typer; ``None`` for a type that is not known here."""
    origin = get_origin(annotation)
    if origin is list:
        return find_converter(get_args(annotation)[0], settings)
    if origin in (Union, UnionType):
        kinds = [one for one in get_args(annotation) if one is not type(None)]
        return find_converter(kinds[0], settings) if len(kinds) == 1 else None
    if not isinstance(annotation, type) or settings.parser is not None:
        return None
    if issubclass(annotation, enum.Enum):
        return lambda value: _parse_choice(annotation, value, case_sensitive=settings.case_sensitive)
    if annotation is bool:
        return _parse_bool
    if annotation in (int, float):
        return lambda value: _parse_number(annotation, value, settings.min, settings.max)
    plain_path = annotation is Path and not (settings.exists or settings.resolve_path or settings.path_type)
    return annotation if annotation is str or plain_path else None


def _parse_choice(kind: type[enum.Enum], value: Any, *, case_sensitive: bool) -> enum.Enum:
    if isinstance(value, kind):
        return value
    words = {str(one.value) if case_sensitive else str(one.value).casefold(): one for one in kind}
    found = words.get(str(value) if case_sensitive else str(value).casefold())
    if found is None:
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, words))}.")
    return found


def _parse_bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError(f"{value!r} is neither yes nor no: write 1 or 0")
    return word in TRUE_WORDS


def _parse_number(kind: type[int] | type[float], value: Any, least: float | None, most: float | None) -> float:
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise ValueError("write a whole number" if kind is int else "write a number") from None
    if least is not None and not number >= least:
        raise ValueError(f"write {least} or more")
    if most is not None and not number <= most:
        raise ValueError(f"write {most} or less")
    return number
