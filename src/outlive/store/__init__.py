"""Where resources are stored: the contract, its backends, and what wraps them."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.store.access import CALL_S, LIST_S, Half, change_spec, change_status, compare_and_swap
from outlive.store.access import read, require_answer, swap
from outlive.store.contract import Change, Delete, Malformed, Page, Reset, Store, Synced, Upsert, list_all
from outlive.store.selectors import Selector

if TYPE_CHECKING:
    from outlive.store.faults import LATE_TASK, FaultObservation, FaultRates, FaultStore, StoreProxy
    from outlive.store.http import HttpStore
    from outlive.store.http_answers import connection_error, decode_object
    from outlive.store.http_calls import BriefCalls
    from outlive.store.http_session import HttpSession
    from outlive.store.local import Judge, LocalStore
    from outlive.store.memory import MemoryStore
    from outlive.store.naming import MATCHES, NAMES_PATH, ObjectNames, choose_named, complete_name, find, find_by_prefix
    from outlive.store.naming import find_named, find_subject, find_vm, is_object_name, names_by_id, names_of
    from outlive.store.observers import ObserverStream
    from outlive.store.rest import RequestCredentials, RestStore
    from outlive.store.rules import check_metadata_patch
    from outlive.store.selectors import Term
    from outlive.store.tables import StoreUsage, Table, Tables, Write, WriteBatch, decode_stored, owner_of
    from outlive.store.tls import AUTHORITY_BYTES, AUTHORITY_PATH, BACKUP_PATH, JOIN_PATH, KEY_PATH, OWN_UNIT
    from outlive.store.tls import RENEWAL_PATH, ROTATION_PATH, SCREEN_PATH, TOKEN_PATH, check_address, fetch_authority
    from outlive.store.tls import fingerprint_of, first_fingerprint, is_loopback, is_own, make_client_context
    from outlive.store.tls import make_pinned_context, parse_certificates, parse_fingerprint, parse_fingerprints, pem_of
    from outlive.store.tls import pinned_certificates, shown_address, split_addresses, url_origin
    from outlive.store.troubles import OVER_S, StoreFull, StoreTroubles
else:
    __getattr__ = load_exports(__name__)

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
    "compare_and_swap",
    "list_all",
    "read",
    "require_answer",
    "swap",
]
