"""Settings with a unit, written as people write them and used as numbers; and the numbers that decisions take.

``Duration`` is seconds and ``Size`` is bytes, so that code calculates with them as with any ``float`` or ``int``; in
``outlive.yaml`` and in the environment they are text such as ``30s`` and ``512Mi``. ``Number`` and the others are
bounded, far beyond any host or any time, so that bad input is refused and never becomes an infinity in an answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from outlive.base import BadInput, format_bytes, format_duration, parse_bytes, parse_duration


class Duration(float):
    """Seconds; text such as ``1m30s`` outside."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Duration:
        """From text; ``BadInput`` for a bare number, because its unit would be a guess, and for a negative one."""
        if not isinstance(value, str | int | float):
            raise BadInput(f"{value!r} is not a duration", remedy='write a unit, such as "30s"')
        seconds = parse_duration(value)
        if seconds < 0:
            raise BadInput(f"{value!r} is negative", remedy="a duration is 0 or more")
        return cls(seconds)

    def __str__(self) -> str:
        """As it is written."""
        return format_duration(float(self))


class Size(int):
    """Bytes; text such as ``512Mi`` outside."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Size:
        """From text or a number of bytes; ``BadInput`` if it is none or negative."""
        if not isinstance(value, str | int | float):
            raise BadInput(f"{value!r} is not a size", remedy='write a number such as "512Mi"')
        size = parse_bytes(value)
        if size < 0:
            raise BadInput(f"{value!r} is negative", remedy="a size is 0 or more")
        return cls(size)

    def __str__(self) -> str:
        """As it is written."""
        return format_bytes(int(self))


def decode_unit(kind: type, value: Any) -> Any:
    """The decoding hook of msgspec for these types."""
    if kind is Duration or kind is Size:
        try:
            return kind.parse(value)
        except BadInput as error:
            raise ValueError(str(error)) from None
    raise TypeError(f"{kind.__name__} has no form as a setting")


def encode_unit(value: Any) -> Any:
    """The encoding hook of msgspec for these types."""
    if isinstance(value, Duration | Size):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form as a setting")


LARGEST: Final = 10**15
"""The largest number that a decision takes, in any unit."""

SMALLEST: Final = 1e-9
"""The smallest interval or rate that is more than nothing."""

Number = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | Annotated[float, Meta(ge=-1e15, le=1e15)]
"""Any number."""
Amount = Annotated[int, Meta(ge=0, le=LARGEST)] | Annotated[float, Meta(ge=0, le=1e15)]
"""A size, an age or a duration: not negative."""
Positive = Annotated[int, Meta(gt=0, le=LARGEST)] | Annotated[float, Meta(ge=SMALLEST, le=1e15)]
"""An interval or a rate: more than nothing."""
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
"""How many: whole and not negative."""
