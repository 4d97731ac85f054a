"""A model of the hand-over of the primary role, phase by phase: what the real one is compared with.

Given who leaves and in which phase it hangs, it says which steps each side does in which order, which phases run into
their limit, and in which state both end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PHASES = "ABCDEFG"
DB_TRIES = 5


@dataclass(frozen=True)
class ModelResult:
    steps: list[str]
    dns_started: bool
    db_attempts: int
    timeouts: list[str]
    final: dict[str, str]


def model_handover(
    new: str,
    old: tuple[str, str] | None,
    networks: Sequence[tuple[int, str]],
    *,
    enable_api: bool = True,
    db: Sequence[str] = ("ok",),
    leaver_stalls_in: str | None = None,
) -> ModelResult:
    """``old``: name and state of its daemon; ``networks``: VNI and type."""
    vnis = [vni for vni, kind in sorted(networks) if kind == "managed"]
    stop_api, start_api = (["stop_api"], ["start_api"]) if enable_api else ([], [])
    leaver = {
        "B": ["stop_dns", *(f"stop_dhcp:{vni}" for vni in vnis), "stop_metadata", *stop_api],
        "C": ["del_upstream"],
        "D": ["del_cluster", "del_storage"],
        "E": ["del_metadata_ip"],
        "F": [f"del_gateways:{vni}" for vni in vnis],
    }
    outcomes = [db[min(number, len(db) - 1)] for number in range(DB_TRIES)]
    attempts = next((number + 1 for number, one in enumerate(outcomes) if one in ("ok", "same")), DB_TRIES)
    dns = outcomes[attempts - 1] in ("ok", "same")
    candidate = {
        "C": ["add_upstream"],
        "D": ["add_cluster", "add_storage"],
        "E": ["add_metadata_ip"],
        "F": [f"add_gateways:{vni}" for vni in vnis],
        "G": [
            "db_leader",
            *start_api,
            "start_metadata",
            *(f"start_dhcp:{vni}" for vni in vnis),
            *(["start_dns"] if dns else []),
        ],
    }
    leaves = old is not None and old[1] in ("run", "shutdown")
    steps: list[str] = []
    for phase in PHASES:
        own = [f"{phase}:{new}:{step}" for step in candidate.get(phase, ())]
        others = []
        if leaves and old is not None and (leaver_stalls_in is None or phase < leaver_stalls_in):
            others = [f"{phase}:{old[0]}:{step}" for step in leaver.get(phase, ())]
        steps += others + own if phase == "B" else own + others
    stalled = leaves and leaver_stalls_in is not None
    after = {"A": ["C"], "B": ["B", "C"], "G": []}
    timeouts = []
    if stalled and leaver_stalls_in is not None:
        timeouts = after.get(leaver_stalls_in, [PHASES[PHASES.index(leaver_stalls_in) + 1 :][:1]])
    final = {new: "primary"}
    if old is not None:
        final[old[0]] = "relinquish" if stalled else "secondary"
    return ModelResult(steps, dns, attempts, timeouts, final)
