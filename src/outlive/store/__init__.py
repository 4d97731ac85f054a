"""Where nouns live: the contract, its backends, and what wraps them. Backends are imported by module name."""

from outlive.store.answering import CALL_S, LIST_S, answered
from outlive.store.contract import Change, Delete, Page, Reset, Store, Synced, Upsert, list_all
from outlive.store.selectors import Selector

__all__ = [
    "CALL_S",
    "LIST_S",
    "Change",
    "Delete",
    "Page",
    "Reset",
    "Selector",
    "Store",
    "Synced",
    "Upsert",
    "answered",
    "list_all",
]
