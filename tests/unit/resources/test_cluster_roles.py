"""RBAC as the second fence: no role of the cluster does more with a kind than the tables let some field or object."""

from __future__ import annotations

from pathlib import Path

import yaml

from outlive.resources import KINDS, ROLES, SUBJECTS, may_write_some
from outlive.resources.cluster_roles import cluster_roles

MANIFEST = Path(__file__).parents[3] / "deploy/kubernetes/roles.yaml"


def granted() -> dict[str, dict[str, set[str]]]:
    """Role → resource → verbs."""
    found: dict[str, dict[str, set[str]]] = {}
    for document in cluster_roles():
        if document["kind"] == "ClusterRole":
            rules = found.setdefault(document["metadata"]["name"], {})
            for rule in document["rules"]:
                for resource in rule["resources"]:
                    rules.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_the_manifest_is_what_the_command_prints() -> None:
    """Written anew by: outlive cluster-roles (below the comment)"""
    assert list(yaml.safe_load_all(MANIFEST.read_text())) == cluster_roles()


def test_what_the_tables_allow_is_granted_and_no_more() -> None:
    roles = granted()
    for role, names in ROLES.items():
        for kind in KINDS.values():
            verbs = roles[f"outlive-{role}s"].get(kind.info.plural, set())
            for verb in ("create", "delete", "update"):
                assert (verb in verbs) == may_write_some(kind, names, verb), (role, kind.__name__, verb)
            assert "deletecollection" not in verbs
            status = roles[f"outlive-{role}s"].get(f"{kind.info.plural}/status", set())
            wanted = kind.has_status() and may_write_some(kind, names, "update", status=True)
            assert ("update" in status) == wanted, (role, kind.__name__)


def test_viewers_write_nothing_and_nobody_but_admins_reads_or_writes_tokens() -> None:
    roles = granted()
    assert {verb for verbs in roles["outlive-viewers"].values() for verb in verbs} == {"get", "list", "watch"}
    for role in SUBJECTS:
        assert role == "admin" or "tokens" not in roles[f"outlive-{role}s"], role
