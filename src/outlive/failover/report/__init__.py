"""What failover shows: metrics, events, tables and HTML reports."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.report.forecast import BY_ITSELF, OVERDUE_S, FullProtection, Lack, Outlook, Pass
    from outlive.failover.report.forecast import ProtectionInput, full_protection
    from outlive.failover.report.metrics import Gauges, host_labels, host_metrics, reservation_metrics
    from outlive.failover.report.reporter import NAMED_IN_A_CYCLE, SOURCE, CycleSummary, Events, Reporter
    from outlive.failover.report.reporter import count_disagreements, log_disagreements
    from outlive.failover.report.view_data import ViewOptions, ViewSnapshot, ViewTable, inventory_of
    from outlive.failover.report.views import VIEWS, make_views
else:
    __getattr__ = load_exports(__name__)
