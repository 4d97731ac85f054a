"""What Outlive keeps in a Kubernetes cluster beside its own kinds."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.kubernetes.events import KubernetesEvents
    from outlive.drivers.kubernetes.pod_cluster import IdentitiesFile, open_pod_cluster, read_identities
    from outlive.drivers.kubernetes.shared_keys import SecretKeys, admission_key, read_authority
    from outlive.drivers.kubernetes.verbs import KubernetesVerbs
else:
    __getattr__ = load_exports(__name__)
