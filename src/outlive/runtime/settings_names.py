"""How settings are named in the environment, and which of them have keys of their own."""

from __future__ import annotations

import re
import typing
from types import UnionType
from typing import Annotated, Any, Final

import msgspec

ENVIRONMENT_PREFIX: Final = "OUTLIVE_"
SEPARATOR: Final = "__"
"""Between section and key in a variable's name; a variable without it is no setting."""

_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def environment_name(section: str, *keys: str) -> str:
    """The variable of a key: ``OUTLIVE_FAILOVER__MAX_VMS_TO_PROCESS``."""
    words = [_WORD_BORDER.sub("_", word).upper() for word in (section, *keys)]
    return ENVIRONMENT_PREFIX + SEPARATOR.join(words)


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field's type is or may be."""
    if typing.get_origin(kind) is Annotated:
        return struct_in(typing.get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return next((found for each in typing.get_args(kind) if (found := struct_in(each)) is not None), None)
    return None
