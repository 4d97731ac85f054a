"""The storage agent: pods leave a node whose DRBD volumes cannot write any more (docs/how-to/storage-agent.md).

Every decision is a pure function over plain data; ``storage/decisions.py`` lists them by name
(docs/design/storage-decisions.md).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.storage.agent import StorageAgent
    from outlive.storage.calls import CommandOutput, DrbdTool
    from outlive.storage.cluster_cache import ClusterCache
    from outlive.storage.decisions import DECISIONS
    from outlive.storage.drbd import CONNECTED, DOCUMENT_BYTES, BadDocument, BadEvent, ConnectionState, DrbdResource
    from outlive.storage.drbd import EventStream, ResourceState, explain_writer, read_event, read_show, read_status
    from outlive.storage.executor import CallRate, PlanExecutor, PlanOutcome
    from outlive.storage.explain import StorageExplanation, Subject
    from outlive.storage.flags import BOOLEAN, DURATION, FLAGS, FlagSection
    from outlive.storage.metrics import PREFIX, AgentMetrics, CacheState
    from outlive.storage.options import AgentFlags, AgentOptions, BadOption, check_usable, health_address, parse_options
    from outlive.storage.options import read_options
    from outlive.storage.tick import KubernetesObjects, Plan, TickInput, view_of
else:
    __getattr__ = load_exports(__name__)
