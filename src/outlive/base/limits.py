"""Named limits of everything that could otherwise grow without bound.

These are the values of the product; what an operator may change is a setting with one of these as its
default (docs/reference/configuration.md).
"""

from __future__ import annotations

from typing import Final

OBJECT_BYTES: Final = 512 * 1024
"""The largest object that any store takes, as JSON."""
PAGE_OBJECTS: Final = 500
"""Objects on one page of a listing, unless asked otherwise; also the most that may be asked for at once times ten."""
IMPORT_FILE_BYTES: Final = 512 * 1024 * 1024
"""The largest file that an import reads."""
REQUEST_BODY_BYTES: Final = 16 * 1024 * 1024
"""The largest HTTP request body."""
EVENTS_KEPT: Final = 10_000
"""Events kept at most."""
EVENT_SECONDS: Final = 3600.0
"""How long an event is kept."""
OBSERVER_QUEUE: Final = 10_000
"""Changes that wait for a slow observer; beyond it the observer gets a Reset and lists again."""
ERROR_BODY_BYTES: Final = 1024
"""What is kept of the body of a peer's error answer."""
