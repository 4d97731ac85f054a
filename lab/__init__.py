"""A laboratory: whole hosts on one machine, made of the kernel's namespaces and real components.

Each part is a small class with ``start`` and ``stop``, both idempotent, that keeps everything in a state directory and
signals only processes that it started. Nothing here is part of the product or of its wheel.
"""
