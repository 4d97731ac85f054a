"""The promise: failover reservations that are kept valid.

``model`` holds the views that all decisions see. ``eligibility``, ``planning`` and ``assurance`` decide and are pure;
``keeping`` acts; ``telling`` and ``views`` show. Modules are imported by name.
"""
