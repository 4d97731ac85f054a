"""The decisions of the storage schema by name, for ``outlive decide`` (docs/design/schema-decisions.md)."""

from __future__ import annotations

from typing import Any, Final

from outlive.runtime.decisions import Decision
from outlive.runtime.schema_steps import SCHEMA_STEP
from outlive.store.schema import (
    GateInput,
    GateResult,
    LockInput,
    LockResult,
    SchemaPlan,
    SchemaPlanInput,
    count_tries,
    open_gate,
    plan_schema,
)

SCHEMA_PLAN: Final = Decision(
    "schema.plan",
    plan_schema,
    SchemaPlanInput,
    SchemaPlan,
    "Which paths are renamed, created and deleted between two versions of the storage schema",
    nulls_are_absent=True,
)
SCHEMA_GATE: Final = Decision(
    "schema.gate",
    open_gate,
    GateInput,
    GateResult,
    "Whether a cluster goes on to a newer storage schema, and which hosts it waits for",
    nulls_are_absent=True,
)
LOCK_ACQUIRE: Final = Decision(
    "lock.acquire",
    count_tries,
    LockInput,
    LockResult,
    "What comes of trying to acquire a lock of the store",
    nulls_are_absent=True,
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (SCHEMA_PLAN, SCHEMA_GATE, SCHEMA_STEP, LOCK_ACQUIRE)
"""All of them."""
