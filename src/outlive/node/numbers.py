"""Numbers of the node's decisions: bounded, so that no sum or product of them leaves what JSON can say.

Whole numbers stay whole. The bounds are far beyond any host or any time; they are there so that bad input is refused
and never becomes an infinity in an answer.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

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
