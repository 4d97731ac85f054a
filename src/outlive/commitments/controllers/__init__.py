"""The controllers of commitments: each looks at one object, decides by the pure modules, and acts."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.commitments.controllers.capacity import CAPACITY, CapacityController
    from outlive.commitments.controllers.quota import EVERYTHING, QuotaController
else:
    __getattr__ = load_exports(__name__)
