"""Which VM may have which slot: the five rules, the counters that keep them judged, and who must leave.

Pure: plain data in, plain data out. Modules are imported by name.
"""
