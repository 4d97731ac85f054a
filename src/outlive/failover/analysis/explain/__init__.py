"""Why a VM has no slot, host by host and slot by slot, and the cheapest thing that would give it one.

Reasons, remedies and trials are pure (docs/reference/failover-analysis.md#explanations). ``placement`` gathers what
they need.
"""
