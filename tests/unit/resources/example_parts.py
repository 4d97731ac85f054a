"""Parts of the examples, which several kinds have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from outlive import resources as r

MOMENT = datetime(2026, 11, 21, 17, 0, 0, tzinfo=UTC)
META = r.ObjectMeta(
    name="one",
    uid="6f9619ff-8b86-4011-b42d-00cf4fc964ff",
    resource_version="7",
    generation=2,
    creation_timestamp=MOMENT,
    finalizers=("outlive.dev/x",),
    labels={"outlive.dev/host": "h1"},
    annotations={"note": "any text, also ünïcode"},
)
AMOUNTS = r.Amounts({"cpu": 7500, "memory": 480 * 2**30, "gpu": 2})
REF = r.ObjectRef(kind="VirtualMachine", name="vm-1", uid="u", cluster="c", api_version="v1", namespace="s")
READY = r.Condition(
    type="Ready",
    status="True",
    reason="Fine",
    message="all is fine",
    last_transition_time=MOMENT,
    observed_generation=2,
)
BIG = r.GroupFlavor(name="l", vcpus=4, memory_mb=4096, disk_gb=1, ephemeral_gb=1, extra_specs={"a": "b"})
STEP = r.Step(
    name="filter_capabilities",
    params=(
        r.Parameter(key="a", string_value="x"),
        r.Parameter(key="b", bool_value=False),
        r.Parameter(key="c", int_value=0),
        r.Parameter(key="d", float_value=0.5),
        r.Parameter(key="e", string_list_value=("x", "y")),
        r.Parameter(key="f", float_map_value={"x": 1.0}),
    ),
    description="a step",
    multiplier=-2.0,
    on_error="reject",
)

PROOF = r.Proof(kind="power", evidence="said off twice", epoch=3, by="h2", fence="h1.3.abc", at=MOMENT)

COMMITTED = r.CommittedResourceSpec(
    commitment_uuid="abc123",
    scheduling_domain="other",
    flavor_group_name="g",
    resource_type="memory",
    amount="16Gi",
    availability_zone="z",
    project_id="p",
    domain_id="d",
    start_time=MOMENT,
    end_time=MOMENT,
    state="confirmed",
    allow_rejection=True,
)
PLACED = r.PlacementDecision(
    timestamp=MOMENT,
    pipeline_ref=r.ObjectRef(kind="Pipeline", name="p", uid="u", cluster="c", api_version="v1", namespace="s"),
    intent="create",
    successful=True,
    target_host="h1",
    ordered_hosts=("h1", "h2"),
    explanation="2 hosts at the start.",
)
MORE_LIMITS: dict[str, Any] = {
    "max_host_failures": 3,
    "start_window_s": 30.0,
    "storage_lost": "fence",
    "storage_resume": "never",
}
