"""The store on a Kubernetes API server (docs/reference/store.md#kubernetes)."""

from outlive.store.kubernetes.access import ClusterAccess, cluster_access
from outlive.store.kubernetes.store import KubernetesStore

__all__ = ["ClusterAccess", "KubernetesStore", "cluster_access"]
