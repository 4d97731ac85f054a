"""OVN: its databases, and the switch of a host (docs/roles/network.md).

``northbound.py`` is written, ``southbound.py`` is read; ``host_network.py`` is a host's side, ``cuts.py`` isolates
hosts. Nothing is imported here: what settings and hosts without OVN need comes without its library.
"""
