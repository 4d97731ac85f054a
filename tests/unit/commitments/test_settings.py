"""Settings: nothing is sold unasked, every interval is something, and contradictions are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlive.base import BadInput
from outlive.commitments import CommitmentSettings
from outlive.runtime import load_settings

SECTIONS = {"commitments": CommitmentSettings}


def load(text: str, tmp_path: Path, environ: dict[str, str] | None = None) -> CommitmentSettings:
    file = tmp_path / "outlive.yaml"
    file.write_text(f"commitments:\n  {text}\n")
    found: Any = load_settings(SECTIONS, file=file, environ=environ or {}, flags={})["commitments"]
    assert isinstance(found, CommitmentSettings)
    return found


def test_capacity_is_reported_and_nothing_is_sold_by_default() -> None:
    group = CommitmentSettings().group_settings("any")
    assert group.ram.has_capacity
    assert group.cores.has_capacity
    assert group.instances.has_capacity
    assert not group.ram.handles_commitments
    assert not group.cores.handles_commitments
    assert not group.ram.has_quota
    assert group.ram.handles_dry_run
    assert group.cores.handles_dry_run


def test_a_group_has_its_own_entry_or_that_of_all_or_nothing(tmp_path: Path) -> None:
    settings = load("flavorGroupResources: {g: {ram: {handlesCommitments: true, ramUnitGiB: 240}}}", tmp_path)
    assert settings.group_settings("g").committed_resource("memory").handles_commitments
    assert settings.group_settings("g").ram.ram_unit_gib == 240
    assert not settings.group_settings("g").committed_resource("cores").handles_commitments
    assert not settings.group_settings("other").ram.has_capacity


def test_a_group_has_its_own_pipeline_or_that_of_all_or_the_default(tmp_path: Path) -> None:
    assert CommitmentSettings().pipeline_for("g") == "kvm-general-purpose-load-balancing"
    settings = load('flavorGroupPipelines: {g: own, "*": others}', tmp_path)
    assert (settings.pipeline_for("g"), settings.pipeline_for("h")) == ("own", "others")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("requeueIntervalRetry: 0s", "requeueIntervalRetry is 0"),
        ("watchTimeout: 0s", "watchTimeout is 0"),
        ("requeueIntervalRetry: 1h", "maxRequeueInterval 30m is less than requeueIntervalRetry 1h"),
        ("capacityMinReconcileInterval: 5m", "capacityReconcileInterval 5m is not more than"),
        ("flavorGroupResources: {g: {instances: {handlesCommitments: true}}}", "nobody commits to instances"),
        ("flavorGroupResources: {g: {cores: {ramUnitGiB: 4}}}", "ramUnitGiB"),
        ("flavorGroupResources: {g: {ram: {ramUnitGiB: -1}}}", "ramUnitGiB"),
        ('flavorGroupPipelines: {g: ""}', "a group without a pipeline"),
        ("maxSlotsPerCommitment: 0", "maxSlotsPerCommitment"),
        ("quotaStateFilter: [superseded]", "quotaStateFilter"),
        ("schedulerURL: http://localhost", "schedulerURL"),
    ],
)
def test_contradictions_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load(text, tmp_path)
    assert complaint in str(caught.value)
