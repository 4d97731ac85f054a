"""The store on ZooKeeper (docs/reference/store.md#zookeeper)."""

from outlive.store.zookeeper.access import ZooKeeperAccess, ZooKeeperTls
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperAccess", "ZooKeeperClient", "ZooKeeperStore", "ZooKeeperTls"]
