"""HTML reports: one file each, which needs nothing else, loads nothing and runs only its own script.

``coverage`` and ``survival`` make the values of a report, ``heatmap`` those of its map of hosts, ``page`` renders the
templates beside it. Every value is escaped by the template engine.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.report.html.coverage import coverage_picture, coverage_report
    from outlive.failover.report.html.figures import FleetFigures, HostFigures, Share, format_cores, format_gib
    from outlive.failover.report.html.figures import format_percent, format_times, group_domain
    from outlive.failover.report.html.heatmap import LARGE_HOSTS, CaseEffect, host_text, hosts_table
    from outlive.failover.report.html.survival import survival_picture, survival_report
else:
    __getattr__ = load_exports(__name__)
