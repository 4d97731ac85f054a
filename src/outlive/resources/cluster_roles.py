"""Roles of a Kubernetes cluster, made from the tables of who writes and who reads what: the second fence.

RBAC knows kinds, halves and verbs. Fields, and whose an object is, the webhook of the controllers judges
(``outlive.api.admission_review``): without it these roles let a host write leases of others.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from outlive.resources import KINDS, Secret, Token
from outlive.resources.meta import GROUP, Resource
from outlive.resources.readers import ROLES as READERS
from outlive.resources.readers import VERBS, find_reads
from outlive.resources.writers import ROLES as WRITERS
from outlive.resources.writers import may_write_some

HOST_ACCOUNTS: Final = "outlive-hosts"
COORDINATOR_ACCOUNTS: Final = "outlive-coordinators"
"""Namespaces with a service account for each host, which has the host's name."""
SUBJECTS: Final = {
    "viewer": ("outlive:viewers",),
    "operator": ("outlive:operators",),
    "controller": ("outlive:controllers",),
    "host": ("outlive:hosts", f"system:serviceaccounts:{HOST_ACCOUNTS}"),
    "coordinator": ("outlive:coordinators", f"system:serviceaccounts:{COORDINATOR_ACCOUNTS}"),
    "admin": ("outlive:admins",),
}
"""Groups of users that have the role."""
_API: Final = "rbac.authorization.k8s.io"


def cluster_roles() -> list[dict[str, Any]]:
    """A ``ClusterRole`` for each role and its binding to the groups of that role."""
    made: list[dict[str, Any]] = []
    for role, groups in SUBJECTS.items():
        name = f"outlive-{role}s"
        made += [
            {
                "apiVersion": f"{_API}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": name},
                "rules": _role_rules(role),
            },
            {
                "apiVersion": f"{_API}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": _API, "kind": "Group", "name": group} for group in groups],
            },
        ]
    return made


def _role_rules(role: str) -> list[dict[str, Any]]:
    """What the tables let the role do, resources with the same verbs together."""
    if role == "admin":
        verbs = [*VERBS, "create", "update", "patch", "delete"]
        return [{"apiGroups": [GROUP], "resources": ["*"], "verbs": verbs}]
    resources: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for kind in KINDS.values():
        resources[_allowed_verbs(role, kind)].append(kind.info.plural)
        if kind.has_status():
            resources[_change_verbs(role, kind, status=True)].append(f"{kind.info.plural}/status")
    return [
        {"apiGroups": [GROUP], "resources": sorted(names), "verbs": list(verbs)}
        for verbs, names in sorted(resources.items())
        if verbs
    ]


def _allowed_verbs(role: str, kind: type[Resource]) -> tuple[str, ...]:
    """Verbs of the kind itself."""
    found: list[str] = []
    for verb in VERBS if role in READERS else ():
        # RBAC can only show objects whole: not secrets of which the role sees a part
        reads = find_reads(role, kind, verb)
        if reads is not None and (reads.everything or kind not in (Secret, Token)):
            found.append(verb)
    names = WRITERS.get(role, ())
    found += [verb for verb in ("create", "delete") if may_write_some(kind, names, verb)]
    return (*found, *_change_verbs(role, kind))


def _change_verbs(role: str, kind: type[Resource], *, status: bool = False) -> tuple[str, ...]:
    return ("update", "patch") if may_write_some(kind, WRITERS.get(role, ()), "update", status=status) else ()
