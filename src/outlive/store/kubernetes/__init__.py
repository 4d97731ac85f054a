"""The store on a Kubernetes API server (docs/reference/store.md#kubernetes)."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.store.kubernetes.access import AccessOverrides, ClusterAccess, cluster_access
from outlive.store.kubernetes.store import KubernetesStore

if TYPE_CHECKING:
    from outlive.store.kubernetes.access import pod_access
    from outlive.store.kubernetes.answers import CRDS_REMEDY, api_error
    from outlive.store.kubernetes.served import CRDS_PATH, check_kinds_served, check_version, missing_fields
else:
    __getattr__ = load_exports(__name__)

__all__ = ["AccessOverrides", "ClusterAccess", "KubernetesStore", "cluster_access"]
