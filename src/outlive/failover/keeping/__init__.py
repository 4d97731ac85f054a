"""Keeping the promise: the cycle, upkeep and validation, and the writes that carry decisions out.

This is the part that acts. Modules are imported by name.
"""
