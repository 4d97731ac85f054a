"""Why a VM has no slot, host by host and slot by slot, and the cheapest thing that would give it one.

Pure: reasons, remedies and trials on plain data (docs/reference/failover.md#explanations). ``outlive.roles.explaining``
gathers what they need.
"""
