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
REQUEST_BODY_BYTES: Final = 4 * 1024 * 1024
"""The largest HTTP request body: several times what the largest object or request for a placement takes."""
REQUEST_VALUES: Final = 100_000
"""Values in the body of one request, which is decoded in one go: 20 ms."""
OBJECT_VALUES: Final = 50_000
"""Values in the body of a request that writes an object, which is merged and converted as well."""
EVENTS_KEPT: Final = 10_000
"""Events kept at most."""
EVENT_SECONDS: Final = 3600.0
"""How long an event is kept."""
OBSERVER_QUEUE: Final = 10_000
"""Changes that wait for a slow observer; beyond it the observer gets a Reset and lists again."""
ERROR_BODY_BYTES: Final = 1024
"""What is kept of the body of a peer's error answer."""
WRITE_QUEUE: Final = 10_000
"""Writes that wait for the embedded store; beyond it a write is refused."""
COMMIT_WRITES: Final = 256
"""Writes of the embedded store that share one transaction."""
STORE_BYTES: Final = 8 * 2**30
"""The largest file of the embedded store, all of which it also keeps in memory."""
STORED_BYTES: Final = 2 * 2**30
"""All objects of a local store together, as JSON; beyond it only kinds of the safety protocol grow in number."""
QUOTA_RESERVE: Final = 0.25
"""Share of the bytes of a kind that its objects' status may take beyond them."""
YIELD_OBJECTS: Final = 128
"""Objects that are decoded before others on the event loop get their turn."""
GENERATE_NAME_TRIES: Final = 8
"""Suffixes tried for a generated name before the name counts as taken."""
ANNOTATION_BYTES: Final = 256 * 1024
"""All keys and values of an object's annotations together."""
