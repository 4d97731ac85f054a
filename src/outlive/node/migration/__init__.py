"""Migrations of virtual machines from host to host."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.migration.migration import SOURCE, TARGET, Here
    from outlive.node.migration.record import PHASES
else:
    __getattr__ = load_exports(__name__)
