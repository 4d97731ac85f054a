"""An independent checker of certificates (docs/reference/failover-certificate.md#certificate).

It shares no code with the rest of failover or with placement, which an import contract enforces: a mistake there
cannot hide here. It knows resources as state files have them, the form of certificates, and the rules, which are
written down once more. From outside only ``check`` and ``findings`` are used.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.verify.check import CaseLanding, CertificateVerdict, VerifyOptions, verify
    from outlive.failover.verify.document import CertifiedState, Code, read_certificate
    from outlive.failover.verify.fleet import StateFleet
    from outlive.failover.verify.memberships import Memberships
else:
    __getattr__ = load_exports(__name__)
