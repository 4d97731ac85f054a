"""``outlive dump``: the whole state as one file that ``--state`` reads."""

from __future__ import annotations

import sys

from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.progress import progress
from outlive.resources import Resource


async def dump(access: Access) -> None:
    """Write the whole state to standard output, as one file for --state."""
    from outlive.base.clock import as_datetime
    from outlive.resources.state import DUMPED, State, encode_state
    from outlive.store import list_all

    objects: list[Resource] = []
    async with access.open() as store:
        with progress("objects read") as bar:
            for kind in DUMPED:
                async for item in list_all(store, kind):
                    objects.append(item)
                    bar.at(len(objects))
    raw = encode_state(State(taken_at=as_datetime(access.clock.now()), objects=tuple(objects)))
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


app = single("dump", dump)
