"""Statistics of a Ceph cluster, from what Ceph 16.2 printed (``ceph-16.2``), and from the older table of daemons."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.loops import run_real

from outlive.base import OBJECT_BYTES, Unavailable
from outlive.drivers.storage import (
    DAEMON_SPACE,
    DAEMON_STATUS,
    DUMP,
    HEALTH,
    RADOS,
    SPACE,
    SPACE_TEXT,
    STATUS,
    TEXT,
    CephStatistics,
    DaemonSpace,
    StorageSettings,
    merge,
    read_activity,
    read_json,
    read_volumes,
    statistics,
)
from outlive.resources import ObjectMeta, StorageActivity, StorageCheck, StorageCluster, encode

RECORDED = Path(__file__).parent / "ceph-16.2"
QUESTIONS = (HEALTH, DUMP, SPACE, DAEMON_SPACE, RADOS, STATUS, SPACE_TEXT, DAEMON_STATUS)
BORDERED = """\
+----+-----------------+-------+-------+--------+---------+--------+---------+-----------+
| id |       host      |  used | avail | wr ops | wr data | rd ops | rd data |   state   |
+----+-----------------+-------+-------+--------+---------+--------+---------+-----------+
| 0  | hv1.example.org |  318G |  463G |  213   |  1430k  |   22   |   124k  | exists,up |
| 1  |                 |    0  |    0  |    0   |     0   |    0   |     0   |   exists  |
+----+-----------------+-------+-------+--------+---------+--------+---------+-----------+
"""


def recorded(state: str) -> dict[str, str]:
    """Question → answer."""
    found: dict[str, str] = {}
    for question in QUESTIONS:
        name = question.removesuffix(TEXT).replace(" ", "-")
        file = RECORDED / state / f"{name}.{'txt' if question.endswith(TEXT) else 'json'}"
        if file.exists():
            found[question] = file.read_text()
    return found


def test_all_sources_are_merged_by_id_and_by_name() -> None:
    report = merge("ceph", recorded("busy"))
    cluster = report.cluster
    assert (cluster.health, cluster.daemons, cluster.daemons_up, cluster.daemons_in) == ("ok", 3, 2, 2)
    assert cluster.id == "9305ad4d-cd82-4e54-8f3c-55193cb34f6f"
    assert cluster.missing == ()
    assert "osd: 3 osds: 2 up" in cluster.text
    assert "--- POOLS ---" in cluster.utilization
    assert cluster.total_bytes == cluster.used_bytes + cluster.free_bytes == 2 * 2**30
    assert set(report.daemons) == report.all_daemons == {"0", "1", "2"}
    assert report.out == {"2"}
    busy = report.daemons["1"]
    assert (busy.up, busy.in_, busy.device_class, busy.placement_groups) == (True, True, "hdd", 9)
    assert busy.size_bytes == 2**30
    assert busy.activity == StorageActivity(
        host="vm",
        used_bytes=254 * 2**20,
        available_bytes=769 * 2**20,
        write_ops=275,
        write_bytes=4404 * 2**10,
        read_ops=267,
        read_bytes=4244 * 2**10,
        state="exists,up",
    )
    assert (report.daemons["2"].up, report.daemons["2"].in_, report.daemons["2"].activity.host) == (False, False, "")
    pool = report.pools["vms"]
    assert (pool.id, pool.objects, pool.object_copies, pool.write_ops) == (2, 68, 136, 5336)
    assert pool.stored_bytes > 0 < pool.free_bytes
    assert report.all_pools == {"vms", "device_health_metrics"}


def test_pools_are_merged_by_name_though_the_lists_are_in_another_order() -> None:
    answers = recorded("busy")
    space = read_json(answers[SPACE], dict)
    space["pools"].reverse()
    turned = merge("ceph", answers | {SPACE: json.dumps(space)})
    assert dict(turned.pools) == dict(merge("ceph", answers).pools)


def test_only_pools_that_are_asked_for_are_reported() -> None:
    report = merge("ceph", recorded("busy"), ("vms",))
    assert set(report.pools) == report.all_pools == {"vms"}


def test_health_names_what_is_wrong_the_worst_first() -> None:
    cluster = merge("ceph", recorded("error")).cluster
    assert cluster.health == "error"
    assert cluster.checks == (
        StorageCheck(code="OSD_OUT_OF_ORDER_FULL", severity="error", summary="full ratio(s) out of order"),
        StorageCheck(code="OSD_NEARFULL", severity="warn", summary="2 nearfull osd(s)"),
        StorageCheck(code="POOL_NEARFULL", severity="warn", summary="2 pool(s) nearfull"),
    )


@pytest.mark.parametrize("source", [DUMP, DAEMON_SPACE, DAEMON_STATUS])
def test_a_daemon_that_one_source_does_not_name_is_left_out_of_this_round(source: str) -> None:
    answers = recorded("busy")
    del answers[source]
    report = merge("ceph", answers)
    assert report.daemons == {}
    assert report.cluster.missing == (source,)
    assert set(report.pools) == {"vms", "device_health_metrics"}, "the rest is there"


def test_a_row_that_is_missing_leaves_out_its_daemon_alone() -> None:
    answers = recorded("busy")
    rows = answers[DAEMON_STATUS].splitlines()
    report = merge("ceph", answers | {DAEMON_STATUS: "\n".join(row for row in rows if not row.startswith(" 1 "))})
    assert set(report.daemons) == {"0", "2"}
    assert report.all_daemons == {"0", "1", "2"}, "it is there, and nothing new is known of it"


@pytest.mark.parametrize("source", [SPACE, RADOS])
def test_pools_that_one_source_does_not_name_are_left_out(source: str) -> None:
    answers = recorded("busy")
    del answers[source]
    assert merge("ceph", answers).pools == {}


def test_what_is_no_json_counts_as_not_answered() -> None:
    report = merge("ceph", recorded("busy") | {HEALTH: "2026-11-24 warning: something\n", DUMP: '{"osds": 7}'})
    assert report.cluster.missing == ("health", "osd dump")
    assert report.cluster.health == "unknown"
    assert report.all_daemons is None


def test_a_cluster_without_daemons_has_no_questions_about_them() -> None:
    answers = {HEALTH: '{"status": "HEALTH_WARN"}', DUMP: '{"fsid": "f", "osds": []}'}
    report = merge("ceph", answers)
    assert report.all_daemons == frozenset()
    assert set(report.cluster.missing) == {SPACE, RADOS, STATUS, SPACE_TEXT}


def test_a_share_of_nothing_is_none() -> None:
    text = '{"nodes":[{"id":0,"utilization":-nan,"var":nan,"pgs":0},{"id":1,"var":inf}],"stray":[]}'
    assert [one.var for one in read_json(text, DaemonSpace).nodes] == [0.0, 0.0]


def test_the_table_with_borders_is_read_as_the_one_without() -> None:
    found = read_activity(BORDERED)
    assert set(found) == {"0", "1"}
    assert (found["0"].host, found["0"].used_bytes, found["0"].write_bytes) == ("hv1", 318 * 2**30, 1430 * 2**10)
    assert (found["1"].host, found["1"].state) == ("", "exists")


@pytest.mark.parametrize("line", ["", "ID  HOST", "1 h 1X 2 3 4 5 6 up", "a b c d e f g h i", "| 1 | h |", "\x00" * 9])
def test_what_is_no_row_is_none(line: str) -> None:
    assert read_activity(line) == {}


def test_volumes_of_the_hosts_own_daemons() -> None:
    device = read_volumes((RECORDED / "ceph-volume.json").read_text())["0"]
    assert device.daemon_id == "658273fd-0f1f-4cf6-ad62-028468543e6d"
    assert device.cluster_id == "9305ad4d-cd82-4e54-8f3c-55193cb34f6f"
    assert device.block_device == "/dev/loop4"
    assert [(one.use, one.group, one.name, one.devices) for one in device.volumes] == [
        ("block", "ceph-3c3fd2c0-block", "osd-block-0", ("/dev/loop4",)),
        ("db", "ceph-db", "osd-db-0", ("/dev/loop5",)),
    ]
    assert read_volumes("{}\n") == {}
    with pytest.raises(Unavailable, match="something else than expected"):
        read_volumes("no volumes")


def test_the_longest_health_checks_fit_into_one_object() -> None:
    long = "\x01" * 20_000
    checks = {f"{number}{long}": {"severity": "HEALTH_WARN", "summary": {"message": long}} for number in range(99)}
    answers = {HEALTH: json.dumps({"status": "HEALTH_WARN", "checks": checks}), STATUS: long, SPACE_TEXT: long}
    cluster = StorageCluster(metadata=ObjectMeta(name="ceph"), term=1, status=merge("ceph", answers).cluster)
    assert len(encode(cluster)) < OBJECT_BYTES


def test_text_that_looks_like_a_share_of_nothing_stays_as_it_is() -> None:
    text = '{"status": "HEALTH_WARN", "checks": {"A": {"summary": {"message": "[a:nan,b]"}}}}'
    (check,) = merge("ceph", {HEALTH: text}).cluster.checks
    assert check.summary == "[a:nan,b]"


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_large_answers_are_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def decode(text: str, kind: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return read_json(text, kind)

    monkeypatch.setattr(statistics, "read_json", decode)
    conf = tmp_path / "ceph.conf"
    conf.touch()
    state = RECORDED / "busy"
    cases = [
        f'*" {name} --format json") cat {state}/{name.replace(" ", "-")}.json;;'
        for name in (HEALTH, DUMP, DAEMON_SPACE, SPACE)
    ]
    cases.append(f'*" {DAEMON_STATUS.removesuffix(TEXT)} --format plain") cat {state}/osd-status.txt;;')
    ceph = program(tmp_path / "ceph", f'case " $*" in {" ".join(cases)} *) exit 22;; esac')
    rados = program(tmp_path / "rados", f"cat {state}/rados-df.json")
    settings = StorageSettings(ceph_conf=str(conf), ceph_keyring="", ceph_program=ceph, rados_program=rados)
    report = run_real(CephStatistics(settings).collect())
    assert set(report.daemons) == {"0", "1", "2"}
    assert report.pools
    assert threads == [False] * 5, "each answer once"


def test_volumes_of_a_host_with_many_daemons_are_read(tmp_path: Path) -> None:
    one = json.loads((RECORDED / "ceph-volume.json").read_text())["0"]
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps({str(number): one for number in range(300)}))
    assert listed.stat().st_size > 2**18
    settings = StorageSettings(volume_program=program(tmp_path / "ceph-volume", f"cat {listed}"))
    assert len(run_real(CephStatistics(settings).list_devices())) == 300
