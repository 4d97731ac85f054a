"""An independent checker of certificates (docs/reference/failover-certificate.md#certificate).

It shares no code with the rest of failover or with placement, which an import contract enforces: a mistake there
cannot hide here. It knows resources as state files have them, the form of certificates, and the rules, which are
written down once more. From outside only ``check`` and ``findings`` are used.
"""
