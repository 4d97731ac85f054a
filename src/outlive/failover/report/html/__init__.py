"""HTML reports: one file each, which needs nothing else, loads nothing and runs only its own script.

``coverage`` and ``survival`` make the values of a report, ``heatmap`` those of its map of hosts, ``page`` renders the
templates beside it. Every value is escaped by the template engine.
"""
