"""Where nouns live: the contract, its backends, and what wraps them. Backends are imported by module name."""

from outlive.store.access import CALL_S, LIST_S, Half, answered, compare_and_swap, read, swap
from outlive.store.contract import Change, Delete, Malformed, Page, Reset, Store, Synced, Upsert, list_all
from outlive.store.selectors import Selector

__all__ = [
    "CALL_S",
    "LIST_S",
    "Change",
    "Delete",
    "Half",
    "Malformed",
    "Page",
    "Reset",
    "Selector",
    "Store",
    "Synced",
    "Upsert",
    "answered",
    "compare_and_swap",
    "list_all",
    "read",
    "swap",
]
