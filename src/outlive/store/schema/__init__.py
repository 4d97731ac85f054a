"""The storage schema: where each kind lives in a tree of paths, which version of it is stored, and how that changes.

Each version is a numbered document that never changes once it was released (``documents``). ``plan`` computes what
takes a tree from one version to another, ``gate`` when a cluster may go there (docs/how-to/upgrades.md).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.store.schema.documents import BASE, FOLDER, SchemaDocument, latest_version, load_document
    from outlive.store.schema.gate import GateInput, GateNode, GateResult, open_gate
    from outlive.store.schema.lock_tries import LockAnswer, LockInput, LockOutcome, LockResult, count_tries
    from outlive.store.schema.plan import PathConflict, SchemaPlan, SchemaPlanInput, UnknownVersion, plan_schema
    from outlive.store.schema.state import LAST_S, MoveUndone, SchemaMove, SchemaState, encode_state, is_last
    from outlive.store.schema.storage import SchemaStorage, active_schema
    from outlive.store.schema.stored_kinds import StoredKinds
else:
    __getattr__ = load_exports(__name__)
