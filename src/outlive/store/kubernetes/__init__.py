"""The store on a Kubernetes API server (docs/reference/store.md#kubernetes)."""

from outlive.store.kubernetes.access import AccessOverrides, ClusterAccess, cluster_access
from outlive.store.kubernetes.store import KubernetesStore

__all__ = ["AccessOverrides", "ClusterAccess", "KubernetesStore", "cluster_access"]
