"""What the API says about itself to clients of the Kubernetes protocol: groups, resources, version."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from outlive.resources import API_VERSION, GROUP, VERSION, Resource
from outlive.resources.schema import singular

SERVED_MAJOR, SERVED_MINOR = "1", "32"
"""The release of Kubernetes whose protocol is served a part of."""


def core_versions() -> dict[str, Any]:
    """``/api``: there is no core group here."""
    return {"kind": "APIVersions", "versions": [], "serverAddressByClientCIDRs": []}


def group() -> dict[str, Any]:
    """``/apis/outlive.dev``."""
    version = {"groupVersion": API_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [version],
        "preferredVersion": version,
    }


def groups() -> dict[str, Any]:
    """``/apis``."""
    only = {key: value for key, value in group().items() if key not in ("kind", "apiVersion")}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [only]}


def resources(plurals: Mapping[str, type[Resource]]) -> dict[str, Any]:
    """``/apis/outlive.dev/v1alpha1``: every kind and, where it has one, its status half."""
    served: list[dict[str, Any]] = []
    for plural, kind in sorted(plurals.items()):
        info = kind.info
        served.append(
            {
                "name": plural,
                "singularName": singular(kind),
                "namespaced": info.namespaced,
                "kind": kind.kind(),
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                "shortNames": list(info.short_names),
                "categories": ["outlive"],
            }
        )
        if kind.has_status():
            served.append(
                {
                    "name": f"{plural}/status",
                    "singularName": "",
                    "namespaced": info.namespaced,
                    "kind": kind.kind(),
                    "verbs": ["get", "patch", "update"],
                }
            )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": served}


def version(outlive_version: str) -> dict[str, Any]:
    """``/version``: the protocol's version for its clients, and ours."""
    return {
        "major": SERVED_MAJOR,
        "minor": SERVED_MINOR,
        "gitVersion": f"v{SERVED_MAJOR}.{SERVED_MINOR}.0+outlive-{outlive_version}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{platform.machine()}",
        "outlive": outlive_version,
    }
