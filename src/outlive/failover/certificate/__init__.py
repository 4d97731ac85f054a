"""Certificates: what is claimed of a state, in a form that somebody else can check.

``document`` is the form, ``making`` decides what may be claimed, ``room`` which hosts cannot keep what is reserved on
them. The checker is ``outlive.failover.verify``, which shares none of this.
"""
