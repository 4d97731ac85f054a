"""Names of Keystone's domains, and which domain each project belongs to, as far as they are known.

Nova's calls for a VM carry the name of its domain, and hosts are set aside for some
(docs/reference/placement.md#filter_external_customer). What asks for a slot of such a VM has its project only. What
is learnt once stays for as long as the process lives.
"""

from __future__ import annotations

from typing import Final

PROJECTS_LIMIT: Final = 200_000
"""Projects and domains that are remembered, each; of further ones nobody knows anything."""


class Domains:
    """See the module."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Id of a domain → its name."""
        self._of_project: dict[str, str] = {}
        """Id of a project → id of its domain."""

    def learn(self, domain: str, *, name: str = "", project: str = "") -> None:
        """The domain of this id has this name, and this project is one of its own; what is empty is not known."""
        if domain and name and (domain in self._names or len(self._names) < PROJECTS_LIMIT):
            self._names[domain] = name
        if domain and project and (project in self._of_project or len(self._of_project) < PROJECTS_LIMIT):
            self._of_project[project] = domain

    def name_of(self, domain: str) -> str:
        """The name of a domain; empty where it is not known."""
        return self._names.get(domain, "")

    def domain_of_project(self, project: str) -> str:
        """The name of a project's domain; empty where it is not known."""
        return self._names.get(self._of_project.get(project, ""), "")
