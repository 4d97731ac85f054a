"""Options of the storage agent mean what a Go program makes of the same words, and nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, NotFound
from outlive.runtime import DecisionTable
from outlive.storage import (
    BOOLEAN,
    DECISIONS,
    DURATION,
    FLAGS,
    AgentOptions,
    BadOption,
    check_usable,
    health_address,
    parse_options,
    read_options,
)

TABLE = DecisionTable(DECISIONS)
DEFAULTS = {
    "node-name": "",
    "drbd-status-interval": "5s",
    "reconcile-interval": "10s",
    "resync-interval": "15m",
    "fail-over-timeout": "5s",
    "operations-timeout": "30s",
    "grace-period-seconds": 10,
    "health-bind-address": ":8000",
    "satellite-pod-label": "app.kubernetes.io/component=linstor-satellite",
    "fail-over-unsafe-pods": False,
    "disable-node-taints": False,
    "v": 0,
    "profile": "hardened",
    "drbd-command-timeout": "10s",
    "drbd-stale-after": "30s",
    "own-taint-delay": "5s",
    "promotion-source": "status",
    "api-qps": 20,
    "api-burst": 40,
    "dry-run": False,
}


def decide(*arguments: str, **environment: str) -> dict[str, Any]:
    raw = json.dumps({"arguments": arguments, "environment": environment}).encode()
    answer: dict[str, Any] = json.loads(TABLE.decide_json("storage.options", raw))
    return answer


def test_without_words_every_option_has_the_default_of_the_controller_that_came_before() -> None:
    answer = decide()
    assert answer["flags"] == DEFAULTS
    assert answer["options"] == {
        "nodeName": "",
        "failOverTimeoutS": 5,
        "operationsTimeoutS": 30,
        "gracePeriodS": 10,
        "reconcileIntervalS": 10,
        "satellitePodLabel": "app.kubernetes.io/component=linstor-satellite",
        "failOverUnsafePods": False,
        "disableNodeTaints": False,
        "ownTaintDelayS": 5,
        "drbdCommandTimeoutS": 10,
        "drbdStaleAfterS": 30,
        "promotionSource": "status",
    }
    assert answer["deadlineS"] == 30
    assert answer["own"] == {
        "brakeFraction": 0.34,
        "brakeWindowS": 60,
        "brakeDomainLabel": "topology.kubernetes.io/zone",
        "standbyDelayS": 10,
        "vmEvacuationTimeoutS": 60,
        "drbdsetup": "drbdsetup",
        "drbdProcFile": "/proc/drbd",
        "recordCuts": False,
        "stateDir": "/var/lib/outlive-storage-agent",
    }


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        (["--fail-over-timeout=1m30s"], "fail-over-timeout", "1m30s"),
        (["--fail-over-timeout", "0"], "fail-over-timeout", "0"),
        (["--fail-over-timeout=.5s"], "fail-over-timeout", ".5s"),
        (["--fail-over-timeout", "-5s"], "fail-over-timeout", "-5s"),
        (["--drbd-status-interval=1500µs"], "drbd-status-interval", "1500µs"),
        (["--fail-over-timeout=1s", "--fail-over-timeout=2s"], "fail-over-timeout", "2s"),
        (["--dry-run"], "dry-run", True),
        (["--dry-run=t"], "dry-run", True),
        (["--dry-run=1"], "dry-run", True),
        (["--dry-run", "--dry-run=F"], "dry-run", False),
        (["--dry-run=False"], "dry-run", False),
        (["--grace-period-seconds=0x1f"], "grace-period-seconds", 31),
        (["--grace-period-seconds=017"], "grace-period-seconds", 15),
        (["--grace-period-seconds", "1_000"], "grace-period-seconds", 1000),
        (["--grace-period-seconds=-1"], "grace-period-seconds", -1),
        (["--grace-period-seconds=0"], "grace-period-seconds", 0),
        (["-v=4"], "v", 4),
        (["-v4"], "v", 4),
        (["-v", "4"], "v", 4),
        (["--v=4"], "v", 4),
        (["--api-qps=2.5"], "api-qps", 2.5),
        (["--satellite-pod-label="], "satellite-pod-label", ""),
        (["--satellite-pod-label=a in (b,c),!d,e!=f,g>1"], "satellite-pod-label", "a in (b,c),!d,e!=f,g>1"),
        (["--health-bind-address="], "health-bind-address", ""),
        (["--node-name=n1", "--"], "node-name", "n1"),
        (["--kubeconfig=/x", "--context", "y", "--insecure-skip-tls-verify", "--as-group=a", "--as-group=b"], "v", 0),
    ],
)
def test_words_are_taken_as_go_programs_take_them(words: list[str], flag: str, value: object) -> None:
    answer = decide(*words)
    assert answer["flags"] == DEFAULTS | {flag: value} | {"own-taint-delay": answer["flags"]["fail-over-timeout"]}


@pytest.mark.parametrize(
    "words",
    [
        ["--unknown=1"],
        ["--fail-over-timeout"],
        ["--fail-over-timeout="],
        ["--fail-over-timeout=5"],
        ["--fail-over-timeout= 5s"],
        ["--fail-over-timeout=5 s"],
        ["--fail-over-timeout=1d"],
        ["--fail-over-timeout=٥s"],
        ["--fail-over-timeout=2562048h"],
        ["--dry-run", "false"],
        ["--dry-run=yes"],
        ["--dry-run="],
        ["--dry-run=tRUE"],
        ["--grace-period-seconds=1.5"],
        ["--grace-period-seconds= 1"],
        ["--grace-period-seconds=08"],
        ["--grace-period-seconds=1__0"],
        ["--grace-period-seconds=9223372036854775808"],
        ["--grace-period-seconds=٣"],
        ["-v=x"],
        ["-v"],
        ["-v=2147483648"],
        ["-n=x"],
        ["-dry-run"],
        ["word"],
        ["-"],
        ["--", "word"],
        ["--=x"],
        ["---dry-run"],
        [""],
        ["--profile=strict"],
        ["--promotion-source=events"],
        ["--api-qps=nan"],
        ["--api-qps=1e3"],
        ["--satellite-pod-label=a=b=c"],
        ["--satellite-pod-label=a,"],
        ["--satellite-pod-label=a in b"],
        ["--satellite-pod-label=-a"],
        ["--insecure-skip-tls-verify=maybe"],
        ["--kubeconfig"],
    ],
)
def test_what_no_option_takes_is_a_bad_option(words: list[str]) -> None:
    assert decide(*words) == {"error": "bad-option"}
    with pytest.raises(BadOption) as refused:
        parse_options(words, {})
    assert refused.value.remedy


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(BadOption, match="did you mean --fail-over-timeout"):
        parse_options(["--failover-timeout=5s"], {})
    with pytest.raises(BadOption, match="did you mean OUTLIVE_STORAGE_AGENT__DRY_RUN"):
        parse_options([], {"OUTLIVE_STORAGE_AGENT__DRYRUN": "true"})
    with pytest.raises(BadOption, match="did you mean standby-delay"):
        parse_options([], {}, {"stand-by-delay": "1s"})


@pytest.mark.parametrize(
    ("words", "deadline"),
    [
        ([], 30),
        (["--operations-timeout=1m"], 60),
        (["--operations-timeout=0"], 20),
        (["--operations-timeout=0", "--grace-period-seconds=45"], 90),
        (["--operations-timeout=0", "--grace-period-seconds=0"], 60),
    ],
)
def test_the_deadline_is_the_timeout_or_twice_the_grace_or_a_minute(words: list[str], deadline: float) -> None:
    assert decide(*words)["deadlineS"] == deadline


def test_the_own_taint_waits_as_long_as_a_failover_unless_told() -> None:
    assert decide("--fail-over-timeout=9s")["options"]["ownTaintDelayS"] == 9
    assert decide("--fail-over-timeout=9s", "--own-taint-delay=0")["options"]["ownTaintDelayS"] == 0
    assert AgentOptions(fail_over_timeout_s=7).own_taint_delay_s == 7


def test_the_node_is_named_by_its_flag_or_by_the_environment() -> None:
    assert decide(NODE_NAME="n1", PATH="/bin")["options"]["nodeName"] == "n1"
    assert decide("--node-name=n2", NODE_NAME="n1")["options"]["nodeName"] == "n2"
    assert decide("--node-name=", NODE_NAME="n1")["options"]["nodeName"] == ""


def test_null_is_an_absent_member() -> None:
    raw = b'{"arguments": null, "environment": null, "file": null}'
    assert json.loads(TABLE.decide_json("storage.options", raw)) == decide()


def test_flags_count_more_than_the_environment_and_that_more_than_the_file() -> None:
    file = {"fail-over-timeout": "1s", "dry-run": True, "grace-period-seconds": 7, "brake-fraction": 0.5}
    environment = {"OUTLIVE_STORAGE_AGENT__FAIL_OVER_TIMEOUT": "2s", "OUTLIVE_STORAGE_AGENT__DRY_RUN": "false"}
    found = parse_options(["--fail-over-timeout=3s"], environment, file)
    assert found.options.fail_over_timeout_s == 3
    assert found.flags["dry-run"] is False
    assert (found.options.grace_period_s, found.own.brake_fraction) == (7, 0.5)


@pytest.mark.parametrize(
    "file",
    [
        {"fail-over-timeout": 5},
        {"fail-over-timeout": None},
        {"fail-over-timeout": ["5s"]},
        {"dry-run": "yes"},
        {"config": "other.yaml"},
        {"options": {"dry-run": True}},
    ],
)
def test_a_wrong_value_of_the_file_names_its_key(file: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as refused:
        parse_options([], {}, file)
    assert next(iter(file)) in str(refused.value)


def test_the_file_is_that_of_the_flag_or_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("node-name: n1\nstandby-delay: 3s\nas-group: [a, b]\n")
    found = read_options([f"--config={path}"], {})
    assert (found.options.node_name, found.own.standby_delay_s) == ("n1", 3)
    assert found.client == {"as-group": ("a", "b")}
    assert read_options([], {"OUTLIVE_STORAGE_AGENT__CONFIG": str(path)}).options == found.options
    with pytest.raises(NotFound):
        read_options([f"--config={tmp_path / 'none'}"], {})
    path.write_text("node-name: n1\nnode-name: n2\n")
    with pytest.raises(BadInput, match="line 1"):
        read_options([f"--config={path}"], {})


@pytest.mark.parametrize(
    "word",
    [
        "--fail-over-timeout=-1s",
        "--operations-timeout=-1s",
        "--own-taint-delay=-1s",
        "--reconcile-interval=0",
        "--drbd-status-interval=0",
        "--drbd-stale-after=0",
        "--grace-period-seconds=-1",
        "--api-qps=0",
        "--api-burst=0",
        "--brake-fraction=0",
        "--brake-fraction=1.1",
        "--standby-delay=-1s",
        "--vm-evacuation-timeout=-1s",
        "--node-name=",
        "--health-bind-address=8000",
        "--health-bind-address=:80000",
        "--health-bind-address=::1:80",
    ],
)
def test_an_agent_does_not_start_with_what_it_cannot_run_with(word: str) -> None:
    flags = parse_options(["--node-name=n1", word], {})
    with pytest.raises(BadOption):
        (check_usable(flags), health_address(flags))


def test_the_health_address_is_a_host_and_a_port_or_nowhere() -> None:
    addresses = [health_address(parse_options([f"--health-bind-address={text}"], {})) for text in ("", ":1", "[::1]:2")]
    assert addresses == [None, ("", 1), ("::1", 2)]


@given(st.sampled_from(FLAGS), st.text(max_size=20))
def test_what_stands_behind_an_option_is_taken_or_refused_by_name(flag: Any, text: str) -> None:
    try:
        found = parse_options([f"--{flag.name}={text}"], {})
    except BadOption as error:
        place = error.place
    else:
        place = flag.name
        assert flag.section in ("own", "client") or flag.name in found.flags
    assert place.strip("-") == flag.name


@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_words_at_all_fail_otherwise(words: list[str]) -> None:
    assert decide(*words).keys() in ({"error"}, decide().keys())


@given(
    st.dictionaries(
        st.sampled_from([flag.name for flag in FLAGS if flag.kind in (BOOLEAN, DURATION)]),
        st.integers(0, 10**6),
    )
)
def test_options_are_the_same_from_flags_environment_and_file(given_: dict[str, int]) -> None:
    kinds = {flag.name: flag.kind for flag in FLAGS}
    texts = {name: str(bool(n % 2)).lower() if kinds[name] is BOOLEAN else f"{n}ms" for name, n in given_.items()}
    of_flags = parse_options([f"--{name}={text}" for name, text in texts.items()], {})
    variables = {f"OUTLIVE_STORAGE_AGENT__{name.upper().replace('-', '_')}": text for name, text in texts.items()}
    assert parse_options([], variables) == of_flags == parse_options([], {}, texts)
