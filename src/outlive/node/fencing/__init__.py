"""Suspecting silent hosts, proving them dead, and what may happen to their virtual machines then.

Nothing in this package trusts a clock of another host, and no timing in it makes a recovery safe: only a recorded proof
does (docs/reference/node-decisions.md#fencing).
"""
