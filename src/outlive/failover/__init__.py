"""The promise: failover reservations that are kept valid.

``model`` holds the views that all decisions see. What decides is pure: ``eligibility`` (may a VM have a slot),
``planner`` (what is to be done), ``assurance`` (what is promised and survived), ``explaining`` (why not, and what
would help), ``whatif`` (in what order hosts can be emptied), ``certificate`` (what may be claimed) and ``verify``,
which checks such claims and shares nothing with the others. ``keeping`` acts. ``report`` shows. Modules are
imported by name.
"""
