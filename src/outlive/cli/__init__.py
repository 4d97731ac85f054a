"""The command line: one module per command group, imported only when its command runs."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.cli.access import Access, all_objects, running_server
    from outlive.cli.commands import DefaultGroup, run_interruptible
    from outlive.cli.console import ESCAPES, added_text
    from outlive.cli.decide import decision_table
    from outlive.cli.errors import report, take_debug
    from outlive.cli.failover import fleet_lines
    from outlive.cli.host import SAME_AS, list_hosts
    from outlive.cli.main import COMMANDS, app
    from outlive.cli.node_ports import screen_passwords
    from outlive.cli.node_settings import SECTIONS, check_clock, load_node
    from outlive.cli.objects import fault_lines, get, write_resource
    from outlive.cli.output import QUIET_SECONDS, Form, ListForm, ObjectOutput, Output, ProgressBar, colour_word
    from outlive.cli.output import fault_blocks, make_table, show_progress
    from outlive.cli.secrets import publish
    from outlive.cli.settings import all_sections, host_sections, load, served_settings
    from outlive.cli.simulate import example_objects
    from outlive.cli.snapshot import take_snapshot
    from outlive.cli.storage_agent import access_overrides
    from outlive.cli.tables import CUT, TextTable, cut_text, shown_width, table_lines, wrapped_lines
    from outlive.cli.values import gib_text
    from outlive.cli.vm import STATE_COLOURS, list_vms
    from outlive.cli.vm_names import VmColumns
    from outlive.cli.why import explanation_lines
else:
    __getattr__ = load_exports(__name__)
