"""What a store offers to whoever changes its storage schema."""

from __future__ import annotations

from typing import Protocol

from outlive.store.schema.state import SchemaState


class SchemaStorage(Protocol):
    """Changes the schema of one store. Whatever ends in the middle is finished by the next call, by anybody."""

    async def state(self) -> SchemaState:
        """By which schema the store is written, and whether a change is under way."""
        ...

    async def run(self, target: int | None = None) -> SchemaState:
        """Finish what is under way, then go to ``target``; the state afterwards. ``Unavailable``: call it again."""
        ...
