"""The store on ZooKeeper (docs/reference/store.md#zookeeper)."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.store.zookeeper.access import ZooKeeperAccess, ZooKeeperTls, read_access
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.store import ZooKeeperStore

if TYPE_CHECKING:
    from outlive.store.zookeeper.client import Found
    from outlive.store.zookeeper.layout import ENTRY, SCHEMA_PATH, is_entry
    from outlive.store.zookeeper.locks import StoreLock
    from outlive.store.zookeeper.log import KEPT, KEPT_OF_HOST, TRIM_EVERY, LogReader, trim
    from outlive.store.zookeeper.permissions import coordinator_reads, coordinator_writes
    from outlive.store.zookeeper.requests import Operation, TransactionRefused, replace_data
    from outlive.store.zookeeper.schema_view import SchemaView
    from outlive.store.zookeeper.tree_file import TreeFile, dump_tree, restore_tree
    from outlive.store.zookeeper.tree_move import TreeMover
else:
    __getattr__ = load_exports(__name__)

__all__ = ["ZooKeeperAccess", "ZooKeeperClient", "ZooKeeperStore", "ZooKeeperTls", "read_access"]
