"""Capacity that is sold: commitments of customers, the slots that fulfil them, and what Limes asks of both.

What decides is pure: ``names`` and ``units`` (how resources are called and counted), ``state`` (a commitment as numbers
and times), ``slots`` (which slots it needs), ``batch`` (what a batch of changes asks for) and ``handover`` (which slots
pass from one commitment of a batch to another). Modules are imported by name. The rules are in
docs/reference/commitments.md.
"""
