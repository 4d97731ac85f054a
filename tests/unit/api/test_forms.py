"""Tables, columns, addresses, errors: the forms that answers have."""

from __future__ import annotations

import msgspec
import pytest
from starlette.requests import Request

from outlive.api import (
    STATUSES,
    ApiSettings,
    check_scheduler_auth,
    column_definitions,
    format_age,
    parse_listen,
    plain_problem,
    status_document,
    status_of,
    table_row,
    wanted_table,
)
from outlive.base import BadInput, Conflict, Instant, OutliveError, as_datetime, errors
from outlive.resources import (
    KINDS,
    Amounts,
    Condition,
    Coverage,
    CoverageStatus,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    cell_at,
    object_cells,
    parse_path,
    value_at,
)

HOST = Hypervisor(
    metadata=ObjectMeta(name="h1", labels={"topology.kubernetes.io/zone": "az1"}, creation_timestamp=as_datetime(1000)),
    status=HypervisorStatus(
        capacity=Amounts(cpu=7500, memory=2**34),
        conditions=(Condition(type="Other", status="False"), Condition(type="Ready", status="True")),
    ),
)


def test_columns_show_defaults_that_the_wire_leaves_out() -> None:
    assert object_cells(HOST) == ["az1", "", "True", 0, "7500m", "16Gi"]
    assert object_cells(HOST, known={"State": "silent for 9 s"})[1] == "silent for 9 s"


def test_every_column_of_every_kind_can_be_parsed() -> None:
    for kind in KINDS.values():
        for _, path, _ in kind.info.columns:
            parse_path(path)


def test_what_is_not_there_is_an_empty_cell() -> None:
    assert cell_at(HOST, ".status.allocation.cpu") == ""
    assert cell_at(HOST, '.status.conditions[?(@.type=="Gone")].status') == ""
    assert value_at(HOST, ".no.such.field") is None


def test_lists_and_maps_are_cells_of_text() -> None:
    status = CoverageStatus(required=2, covered=True, slots=("a", "b"), also_needs=Amounts(gpu=1))
    assert cell_at(Coverage(status=status), ".status.slots") == "a,b"
    assert cell_at(Coverage(status=status), ".status.alsoNeeds") == "gpu=1"


@pytest.mark.parametrize("path", ["status", ".a[0]", ".a.", "..b"])
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(BadInput):
        parse_path(path)


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            "v1",
        ),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io", "v1beta1"),
        ("application/json", ""),
        ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", ""),
        ("", ""),
        ("text/html,*/*", ""),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", ""),
    ],
)
def test_a_table_is_sent_only_to_who_asks_for_it_first(accept: str, version: str) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert wanted_table(request) == version


def test_a_row_has_a_cell_for_every_column() -> None:
    for kind in (Hypervisor,):
        assert len(table_row(HOST, Instant(2000), "None", {})["cells"]) == len(column_definitions(kind))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d"), (10**8, "1157d"), (-5, "0s")],
)
def test_ages_are_whole_and_short(seconds: float, text: str) -> None:
    assert format_age(HOST.metadata, Instant(1000 + seconds)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:8080", ("127.0.0.1", 8080)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_addresses_to_listen_on(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "8080", ":8080", "::1:8080", "h:port", "h:65536", "h:-1", "h:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_listen(text)


@pytest.mark.parametrize(
    "settings", [{"listen": "nowhere"}, {"tls_key": "k"}, {"tls_client_ca": "c"}, {"watches": 0}, {"connections": -1}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ApiSettings(**settings)  # type: ignore[arg-type]


def test_client_certificates_need_an_authority() -> None:
    check_scheduler_auth("token", ApiSettings())
    with pytest.raises(BadInput):
        check_scheduler_auth("mtls", ApiSettings())


def test_every_error_has_a_status_and_a_stable_code() -> None:
    kinds = [one for one in errors.OutliveError.__subclasses__() if one.__module__ == errors.__name__]
    for kind in [errors.OutliveError, *kinds]:
        status = status_of(kind("x"))
        assert status.http == 500 if kind is errors.OutliveError else 400 <= status.http < 600
    assert [status.http for kind, status in STATUSES if kind is Conflict or issubclass(Conflict, kind)] == [409]


def test_a_defect_tells_the_client_nothing_but_the_request_id() -> None:
    for form in (plain_problem, status_document):
        body = msgspec.json.encode(form(ValueError("the secret"), "req-7"))
        assert b"secret" not in body
        assert b"req-7" in body
        assert b"internal" in body


def test_an_error_is_one_line_with_place_and_remedy() -> None:
    error = BadInput("wrong", place="spec.x", remedy="do it right")
    plain = plain_problem(error, "req-1")
    assert plain == {
        "code": "bad-input",
        "message": "wrong",
        "place": "spec.x",
        "remedy": "do it right",
        "requestId": "req-1",
    }
    status = status_document(error, "req-1")
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 400, "BadRequest")
    assert status["message"] == "spec.x: wrong (do it right)"
    assert status["details"]["causes"] == [{"reason": "bad-input", "message": "wrong (do it right)", "field": "spec.x"}]
    assert isinstance(error, OutliveError)
