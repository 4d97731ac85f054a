"""Settings: flags before environment before file, and every mistake is named with its place and the nearest key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, LimitExceeded, NotFound, OutliveError
from outlive.failover import SECTIONS as FAILOVER_SECTIONS
from outlive.runtime import Duration, Size, environment_name, load_settings, parse_settings, reference_page


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """Limits inside a section."""

    max_things: Annotated[int, msgspec.Meta(description="How many things.")] = 5


class Thing(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """Section ``thing``: an example."""

    interval: Annotated[Duration, msgspec.Meta(description="Pause between looks")] = Duration(30)
    memory: Annotated[Size, msgspec.Meta(description="How much memory.")] = Size(2**30)
    max_vms_to_process: Annotated[int, msgspec.Meta(description="How many VMs | at once.")] = msgspec.field(
        default=3, name="maxVMsToProcess"
    )
    share: Annotated[float, msgspec.Meta(ge=0, le=1, description="A share")] = 0.5
    name: str = ""
    maybe: str | None = None
    enabled: bool = True
    mode: Literal["fast", "slow"] = "fast"
    hosts: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    either: Literal["reference"] | list[str] = msgspec.field(default_factory=list)
    limits: Limits = Limits()
    many: list[Limits] = []

    def __post_init__(self) -> None:
        if self.name == "wrong":
            raise ValueError("name is wrong")
        if self.name == "refused":
            raise BadInput("name is refused", place="thing.name", remedy="choose another")


class Other(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Section ``other``."""

    level: int = 1


SECTIONS = {"thing": Thing, "otherPart": Other}


def _load(text: str | None = None, environ=None, flags=None, tmp: Path | None = None):
    file = None
    if text is not None:
        file = tmp / "outlive.yaml"
        file.write_text(text)
    return load_settings(SECTIONS, file=file, environ=environ or {}, flags=flags or {})


def test_without_anything_all_sections_are_at_their_defaults():
    assert _load() == {"thing": Thing(), "otherPart": Other()}


def test_flags_count_more_than_environment_and_that_more_than_the_file(tmp_path):
    text = "thing:\n  name: file\n  interval: 1m30s\n  maxVMsToProcess: 7\notherPart: {level: 2}\n"
    environ = {"OUTLIVE_THING__NAME": "environment", "OUTLIVE_THING__MAX_VMS_TO_PROCESS": "8"}
    loaded = _load(text, environ, {"thing.name": "flag", "otherPart.level": None}, tmp_path)
    assert loaded["thing"].name == "flag"
    assert loaded["thing"].max_vms_to_process == 8
    assert loaded["thing"].interval == 90.0
    assert loaded["otherPart"].level == 2


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("OUTLIVE_THING__INTERVAL", "5m", "interval", 300.0),
        ("OUTLIVE_THING__MEMORY", "512Mi", "memory", 512 * 2**20),
        ("OUTLIVE_THING__MEMORY", "1024", "memory", 1024),
        ("outlive_thing__interval", "5m", "interval", 30.0),
        ("OUTLIVE_THING__MAXVMSTOPROCESS", "9", "max_vms_to_process", 9),
        ("OUTLIVE_THING__maxVMsToProcess", "9", "max_vms_to_process", 9),
        ("OUTLIVE_THING__SHARE", "1", "share", 1.0),
        ("OUTLIVE_THING__SHARE", "1e-1", "share", 0.1),
        ("OUTLIVE_THING__NAME", "12", "name", "12"),
        ("OUTLIVE_THING__NAME", "", "name", ""),
        ("OUTLIVE_THING__MAYBE", "null", "maybe", "null"),
        ("OUTLIVE_THING__ENABLED", "false", "enabled", False),
        ("OUTLIVE_THING__ENABLED", "no", "enabled", False),
        ("OUTLIVE_THING__ENABLED", "0", "enabled", False),
        ("OUTLIVE_THING__MODE", "slow", "mode", "slow"),
        ("OUTLIVE_THING__HOSTS", "a, b", "hosts", ("a", "b")),
        ("OUTLIVE_THING__HOSTS", "[a, b]", "hosts", ("a", "b")),
        ("OUTLIVE_THING__HOSTS", "a", "hosts", ("a",)),
        ("OUTLIVE_THING__COUNTS", '{"m1.*": 2}', "counts", {"m1.*": 2}),
        ("OUTLIVE_THING__EITHER", "reference", "either", "reference"),
        ("OUTLIVE_THING__EITHER", "D3,D11", "either", ["D3", "D11"]),
        ("OUTLIVE_THING__LIMITS__MAX_THINGS", "6", "limits", Limits(max_things=6)),
    ],
)
def test_a_variable_is_read_as_its_field_wants_it(variable, text, field, value):
    assert getattr(_load(environ={variable: text})["thing"], field) == value


def test_variables_that_are_no_settings_are_left_alone():
    assert _load(environ={"OUTLIVE_SHARED": "/x", "PATH": "/bin", "OTHER__X": "1"})["thing"] == Thing()


def test_a_nested_key_keeps_its_neighbours_from_the_file(tmp_path):
    text = "thing:\n  limits:\n    maxThings: 9\n  name: file\n"
    loaded = _load(text, {"OUTLIVE_THING__SHARE": "0.25"}, tmp=tmp_path)["thing"]
    assert (loaded.limits.max_things, loaded.name, loaded.share) == (9, "file", 0.25)


def _complaint(*args, **options) -> BadInput:
    with pytest.raises(BadInput) as caught:
        _load(*args, **options)
    return caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thingg: {}\n", ["outlive.yaml:1", "section 'thingg'", "did you mean thing?"]),
        ("thing:\n  name: x\n  intervall: 3s\n", ["outlive.yaml:3", "thing.intervall", "thing.interval?"]),
        ("thing:\n  limits:\n    maxThing: 3\n", ["outlive.yaml:3", "thing.limits.maxThing", "limits.maxThings?"]),
        ("thing:\n  many:\n    - maxThing: 3\n", ["thing.many[0].maxThing", "maxThings"]),
        ("thing:\n  interval: 30\n", ["outlive.yaml:2", "thing.interval is 30", "write a unit"]),
        ("thing:\n  interval: -30s\n", ["outlive.yaml:2", "negative"]),
        ("thing:\n  memory: lots\n", ["outlive.yaml:2", "'lots'", "not a quantity"]),
        ("thing:\n\n  share: 2\n", ["outlive.yaml:3", "thing.share is 2", "<= 1"]),
        ("thing:\n  mode: medium\n", ["outlive.yaml:2", "thing.mode is 'medium'"]),
        ("thing:\n  counts:\n    a: 1\n    b: x\n", ["thing.counts.b is 'x'", "Expected `int`"]),
        ("thing:\n  hosts: [1]\n", ["outlive.yaml:2", "Expected `str`, got `int`"]),
        ("thing:\n  name: wrong\n", ["thing", "name is wrong"]),
        ("thing:\n  name: refused\n", ["thing.name", "name is refused", "choose another"]),
        ("thing: 3\n", ["outlive.yaml:1", "section thing is 3"]),
        ("- a\n", ["outlive.yaml", "holds list, not sections"]),
        ("thing:\n  name: a\n  name: b\n", ["outlive.yaml:3", "'name'", "line 2"]),
        ("thing:\n  name: [a\n", ["outlive.yaml:3", "is not YAML"]),
        ("thing:\n  name: !!python/object:os.system x\n", ["outlive.yaml:2", "is not YAML"]),
        ("thing:\n  ? [a]\n  : b\n", ["outlive.yaml:2", "a key is not text"]),
        ("thing: " + "[" * 40 + "]" * 40, ["outlive.yaml:1", "nested too deeply"]),
        ("1: {}\n", ["section '1'", "is not known"]),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path, text, words):
    error = str(_complaint(text, tmp=tmp_path))
    assert "\n" not in error
    for word in words:
        assert word in error


def test_all_mistakes_of_all_sections_and_sources_are_told_at_once(tmp_path):
    text = "thingg: {}\nthing:\n  intervall: 3s\n  mode: medium\n  hosts: [1, a]\n  counts: {a: x}\notherPart: 3\n"
    error = _complaint(text, {"OUTLIVE_THING__NONSENSE": "1"}, {"thing.rubbish": 1}, tmp=tmp_path)
    reported = [str(one) for one in error.problems]
    for words in (
        "section 'thingg' is not known",
        "thing.intervall",
        "thing.mode is 'medium'",
        "thing.hosts[0] is 1",
        "thing.counts.a is 'x'",
        "section otherPart is 3",
        "thing.NONSENSE",
        "thing.rubbish",
    ):
        assert [words in one for one in reported].count(True) == 1, words
    assert all(":" in one for one in reported)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OUTLIVE_THNG__NAME": "x"}, ["OUTLIVE_THNG__NAME", "did you mean thing?"]),
        ({"OUTLIVE_THING__INTERVALL": "3s"}, ["OUTLIVE_THING__INTERVALL", "thing.interval?"]),
        ({"OUTLIVE_THING__MAX_VMS_TO_PROCESS": "many"}, ["OUTLIVE_THING__MAX_VMS_TO_PROCESS", "'many'", "`int`"]),
        ({"OUTLIVE_THING__INTERVAL": "30"}, ["OUTLIVE_THING__INTERVAL", "'30'", "write a unit"]),
        ({"OUTLIVE_THING__NAME__X": "y"}, ["thing.name has no keys of its own"]),
        ({"OUTLIVE_THING__INTERVAL": "3s", "OUTLIVE_THING__Interval": "4s"}, ["say different things"]),
        ({"OUTLIVE_THING__COUNTS": "{a: "}, ["OUTLIVE_THING__COUNTS", "Expected `object`"]),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ, words):
    error = str(_complaint(environ=environ))
    for word in words:
        assert word in error


def test_a_mistake_in_a_flag_names_the_flag():
    assert "flag thing.share" in str(_complaint(flags={"thing.share": "7"}))
    assert "did you mean thing.share?" in str(_complaint(flags={"thing.shar": "1"}))
    assert "name a key" in str(_complaint(flags={"thing": "1"}))


def test_a_file_that_is_missing_unreadable_too_large_or_no_text_is_refused(tmp_path):
    def load(file):
        return load_settings(SECTIONS, file=file, environ={}, flags={})

    with pytest.raises(NotFound):
        load(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "large.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(LimitExceeded, match="larger than"):
        load(tmp_path / "large.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"thing: {name: \xff}")
    with pytest.raises(BadInput, match="UTF-8 at byte 14"):
        load(tmp_path / "latin.yaml")


def test_anchors_work_and_cannot_unfold_without_bound(tmp_path):
    loaded = _load("thing:\n  name: &n same\n  maybe: *n\n", tmp=tmp_path)["thing"]
    assert (loaded.name, loaded.maybe) == ("same", "same")
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
    )
    with pytest.raises(LimitExceeded, match="more than"):
        _load(bomb, tmp=tmp_path)


def test_an_empty_file_or_section_is_nothing_said(tmp_path):
    assert _load("", tmp=tmp_path)["thing"] == Thing()
    assert _load("thing:\n", tmp=tmp_path)["thing"] == Thing()


@given(st.text(max_size=200))
def test_no_text_at_all_makes_anything_but_settings_or_our_errors(text):
    said: object = {}
    try:
        said, _ = parse_settings(text.encode("utf-8", "surrogatepass"), "f")
    except OutliveError as refusal:
        complaint = str(refusal)
    else:
        complaint = ""
    assert isinstance(said, dict)
    assert "\n" not in complaint


def test_names_of_variables():
    assert environment_name("failoverUpkeep", "maxVMsToProcess") == "OUTLIVE_FAILOVER_UPKEEP__MAX_VMS_TO_PROCESS"
    assert environment_name("failover", "schedulerURL") == "OUTLIVE_FAILOVER__SCHEDULER_URL"


def test_the_reference_page_has_a_line_for_every_key():
    page = reference_page(SECTIONS)
    assert "## thing" in page
    assert "\nAn example.\n" in page
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("- `")}
    assert lines["interval"] == "- `interval` (`30s`): Pause between looks"
    assert lines["memory"] == "- `memory` (`1Gi`): How much memory."
    assert lines["maxVMsToProcess"] == "- `maxVMsToProcess` (`3`): How many VMs | at once."
    assert lines["mode"].startswith("- `mode` (`fast`, `slow`): ")
    assert lines["counts"].startswith("- `counts` (map of whole number): ")
    assert lines["limits.maxThings"].endswith(": How many things.")
    assert lines["name"].startswith("- `name`: ")
    assert lines["hosts"].startswith("- `hosts` (list): ")


def test_the_sections_of_failover_load_and_are_described():
    loaded = load_settings(
        FAILOVER_SECTIONS,
        file=None,
        environ={"OUTLIVE_FAILOVER__CREATOR": "us", "OUTLIVE_FAILOVER__RECONCILE_INTERVAL": "45s"},
        flags={},
    )
    assert loaded["failover"].creator == "us"
    assert loaded["failover"].reconcile_interval_s == 45.0
    page = reference_page(FAILOVER_SECTIONS)
    lines = [line for line in page.splitlines() if line.startswith("- `")]
    assert lines
    assert [line for line in lines if line.endswith(": ")] == []


def test_units_show_as_they_are_written():
    assert (str(Duration(90)), str(Size(512 * 2**20))) == ("1m30s", "512Mi")
    with pytest.raises(BadInput):
        Duration.parse([])
    with pytest.raises(BadInput):
        Size.parse(None)
    with pytest.raises(BadInput):
        Size.parse("-1")


def test_a_null_for_a_key_that_has_none_counts_as_nothing_said(tmp_path):
    loaded = _load("thing:\n  name: null\n  maxVMsToProcess:\n  interval: null\n  maybe: null\n", tmp=tmp_path)["thing"]
    assert loaded == Thing()


def test_what_a_section_refuses_as_a_whole_is_placed_where_its_only_key_was_given():
    with pytest.raises(BadInput) as error:
        _load(environ={"OUTLIVE_THING__NAME": "wrong"})
    assert error.value.place == "OUTLIVE_THING__NAME"
    with pytest.raises(BadInput) as error:
        _load(environ={"OUTLIVE_THING__NAME": "wrong"}, flags={"thing.share": 0.1})
    assert error.value.place == ""
