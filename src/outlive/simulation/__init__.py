"""A whole cluster in one process, under virtual time, with every fault injected, and the same way for the same seed."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.simulation.controllers import Bmc, PowerClient
    from outlive.simulation.disks import ONE_PLACE, SPREADS_S, SimDisks, StorageClient
    from outlive.simulation.ensemble import ELECTION_S, MOVE_S, NOTICE_S, Ensemble, Server, choose_leader
    from outlive.simulation.expectations import Expectations, Moment, read_expectations
    from outlive.simulation.functions import SimCards
    from outlive.simulation.guards import SimGuard, SimGuardClient
    from outlive.simulation.history import History, HistoryEvent, group_events, lines_of
    from outlive.simulation.hosts import HypervisorClient, Program, SimHost, SimService
    from outlive.simulation.hypervisors import PHASES, SimDomain, SimHypervisor, domain_of
    from outlive.simulation.inventory import Virtual, build_virtual
    from outlive.simulation.limes import WantedCommitment
    from outlive.simulation.machines import HostClock, Machine, MachineClient
    from outlive.simulation.narration import format_sentence, narrate, narrate_end, narrate_guard
    from outlive.simulation.networks import Segment
    from outlive.simulation.process import Process, go
    from outlive.simulation.programs import ControllerRole
    from outlive.simulation.refusals import WriteRefusal
    from outlive.simulation.scenario import CLUSTER, EXPECT, Scenario, inventory_scenario, read_scenario, read_value
    from outlive.simulation.setup import resources_of
    from outlive.simulation.spec import BmcMode, FlavorEntry, HostSpec, HostsSpec, NetworkEntry, VmSpec, VmsSpec
    from outlive.simulation.spec import WorldSpec, hosts_of, read_as, uses_ovn, vms_of
    from outlive.simulation.states import find_differences, is_match
    from outlive.simulation.stores import ADMINISTRATOR, OUTSIDE, QUIET, Author, ProcessStore, Refused, StoreLink
    from outlive.simulation.stores import WorldStore, Wrote, current_author, set_author
    from outlive.simulation.story import LOOK_S, PlayedStory, Story, collect_rarely, format_proposal
    from outlive.simulation.summary import HeldVm, RunSummary, percentile_of
    from outlive.simulation.timeline import Act, read_timeline
    from outlive.simulation.tokens import TokenStore
    from outlive.simulation.world import REPORTED_S, MakeStore, World
else:
    __getattr__ = load_exports(__name__)
