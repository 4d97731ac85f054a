"""Keeping the promise: the cycle, upkeep and validation, and the writes that carry decisions out.

This is the part that acts. ``periodic`` is the cycle: it looks (``observe``), cleans up (``judging``), asks placement
(``placing``, ``calls``), decides (``decide``), acts (``act``, ``moving``) and tells (``closing``, ``covering``).
``upkeep`` reacts between cycles (``reacting``) on a state that is kept current (``kept``, ``following``, ``racks``,
``mirror``) and held against what there is (``auditing``). ``validation`` asks about one slot at a time. They share
``parts``, take ``turns``, have slots in ``hand``, keep to a ``budget`` and write by ``writes``. Modules are imported by
name.
"""
