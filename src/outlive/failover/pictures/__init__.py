"""Reports to look at: from plain data to one HTML file without anything outside it. Pure; modules by name.

``coverage_report`` and ``survival_report`` are the reports, ``model`` is what they show, ``heatmap`` draws hosts, and
``page``, ``markup`` and ``amounts`` are what they are made of.
"""
