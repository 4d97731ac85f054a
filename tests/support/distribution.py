"""Which tests one process runs one after the other, and which begin first, where a run has several processes.

A file is run by one process. Files that use the same servers go together, because a server takes many seconds of a core
to start. Long tests that start nothing go one by one to the process that is free, so that none works alone at the end.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

SINGLE: Final = ("tests/model/", "tests/swarm/", "tests/scenarios/")
"""Folders with long tests that start nothing which others use as well."""
STORIES: Final = "tests/scenarios/test_real_stores.py"
"""But here the tests of one store go together, by the last word of their names."""
TOGETHER: Final[dict[str, tuple[str, ...]]] = {
    "kernel": ("tests/integration/kernel/",),
    "ceph": ("tests/conformance/ports/test_isolation.py", "tests/conformance/ports/test_storage_statistics.py"),
    "stores": ("tests/conformance/test_store_",),
    "zookeeper": ("tests/integration/test_schema_", "tests/integration/test_zookeeper_"),
    "kubernetes": (
        "tests/attacks/test_direct_writes.py",
        "tests/integration/test_admission.py",
        "tests/integration/test_client_options.py",
        "tests/integration/test_cloud_hypervisors.py",
        "tests/integration/test_cluster_verbs.py",
        "tests/integration/test_direct.py",
        "tests/integration/test_foreign_kinds.py",
    ),
    "pods": (
        "tests/integration/test_kubernetes_refusals.py",
        "tests/integration/test_network_pods.py",
        "tests/integration/test_pod_admission.py",
        "tests/integration/test_selectors_of_kubernetes.py",
        "tests/integration/test_storage_agent",
        "tests/integration/test_storage_deployment.py",
        "tests/integration/test_storage_kubevirt.py",
    ),
}
"""Files that use the same servers, by how their paths begin."""
LONGEST_FIRST: Final = (
    "zookeeper",
    "tests/integration/test_network_moves.py",
    f"{STORIES}-kubernetes",
    "kernel",
    "kubernetes",
    f"{STORIES}-zookeeper",
    "tests/integration/test_libvirt_moves.py",
    "stores",
    "tests/integration/test_commitments.py",
    "ceph",
    "tests/integration/test_storage_statistics.py",
    "pods",
    "tests/integration/test_lab_ceph.py",
    "tests/integration/test_lab_kubernetes.py",
    "tests/integration/test_controller.py",
    "tests/conformance/ports/test_hypervisor.py",
    "tests/integration/test_up.py",
    "tests/integration/test_lab.py",
    "tests/integration/test_disaster.py",
    "tests/conformance/ports/test_power.py",
    "tests/integration/test_storage_ceph.py",
    "tests/integration/test_bare_metal.py",
    "tests/attacks/test_fuzz.py",
    "tests/integration/test_dead_disk.py",
    "tests/integration/test_node_libvirt.py",
    "tests/torture/test_kubernetes.py",
    "tests/integration/test_walkthrough.py",
    "tests/integration/test_import_openb.py",
    "tests/unit/simulation/test_network_moves.py",
)
"""What takes half a minute and more, in the order in which it begins; those that emulate whole machines begin apart."""


def part_of(nodeid: str) -> str:
    """Which part of the run a test belongs to; one process runs a part."""
    path = nodeid.partition("::")[0]
    if path == STORIES:
        return f"{path}-{nodeid.removesuffix(']').rpartition('-')[2]}"
    if path.startswith(SINGLE):
        return nodeid
    return next((name for name, paths in TOGETHER.items() if path.startswith(paths)), path)


def place_of(nodeid: str) -> int:
    """When a test begins: the lower, the sooner."""
    part = part_of(nodeid)
    return LONGEST_FIRST.index(part) if part in LONGEST_FIRST else len(LONGEST_FIRST)


class PartScheduling(LoadFileScheduling):
    """As xdist distributes files, but by parts."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)
