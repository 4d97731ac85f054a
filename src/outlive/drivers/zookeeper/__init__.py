"""What a cluster keeps in ZooKeeper besides its objects."""

from outlive.drivers.zookeeper.shared_keys import ZnodeKeys

__all__ = ["ZnodeKeys"]
