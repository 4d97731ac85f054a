"""The virtual machines of one host: what an observed state asks for, and the steps that carry it out.

Decisions are pure functions; steps take the context of the host. Who may run a virtual machine at all is settled by its
holders (``outlive.node.membership.holders``), not here.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.vm.console import LOOK_S, PAUSE_S, ConsoleWatcher, TailInput, console_sweeper, console_tail
    from outlive.node.vm.console import keep_tail
    from outlive.node.vm.context import ConsoleLogs, GuestCounts, LogEnd, LogStamp, NodeSettings, OrderMemory
    from outlive.node.vm.context import Statistics, VmContext, VmMemory, settings_for_attempt
    from outlive.node.vm.domains import LocalDomains
    from outlive.node.vm.locks import START_LOCKS, StartLocksInput, list_conflicts, start_locks
    from outlive.node.vm.operator import DELETING, DONE, PROTECTED, add_tags, attach_device, change_vm
    from outlive.node.vm.operator import check_name_is_free, check_size, detach_device, display_name_of, follow_request
    from outlive.node.vm.operator import is_at_rest, outcome_of, rename_vm, running_entry, set_profile, shown_state
    from outlive.node.vm.operator import tag_labels, tag_vm, tags_of, undefine_vm, untag_vm
    from outlive.node.vm.reconciler import CALM_S, LOOKS
    from outlive.node.vm.requests import RELOCATIONS, VM_REQUEST, Places, VmRequestCode, VmRequestResult, apply_writes
    from outlive.node.vm.requests import is_asked, places_for, request_input
    from outlive.node.vm.selection import MEBIBYTE, READY, RUN, Books, Choice, Choosing, Needing, NodeFigures
    from outlive.node.vm.selection import NodeMemory, VmToPlace, find_home_elsewhere
    from outlive.node.vm.selection import home_after, relocate_status, survey_hosts
    from outlive.node.vm.start import end_former_creates
    from outlive.node.vm.start_order import LINK_S, NamedVm, StartOrderInput, StartOrderResult, find_cycle
    from outlive.node.vm.start_order import sort_by_order
    from outlive.node.vm.states import PHASES
    from outlive.node.vm.states import current_order, current_rejection, deletion_of, end_phase, is_ignored, reach_of
    from outlive.node.vm.states import set_phase, was_requested_since
else:
    __getattr__ = load_exports(__name__)
