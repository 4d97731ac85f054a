"""The edge: tokens, limits, request ids, metrics, defects, TLS, starting and stopping."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from lab.processes import until
from tests.support.api import GROUP, TOKENS, Api, api
from tests.support.browser import browser
from tests.support.loops import run_real

from outlive.api import ApiDeps, ApiSettings, Role, Tokens, create_app, read_server_file, serve_app
from outlive.base import (
    BadInput,
    ExitCode,
    InUse,
    NotFound,
    SystemClock,
    SystemIds,
    Unavailable,
    Unknown,
    as_datetime,
    write_whole,
)
from outlive.commitments import GroupOverview
from outlive.resources import (
    Cluster,
    ClusterSpec,
    Coverage,
    CoverageStatus,
    Fault,
    ObjectMeta,
    ObjectRef,
    VirtualMachine,
)
from outlive.runtime import Duration, Metrics, Size
from outlive.store import MemoryStore

VMS = f"{GROUP}/virtualmachines"


async def test_without_a_known_token_one_line_names_the_way_out() -> None:
    async with api() as server:
        for headers in ({}, {"Authorization": "Bearer wrong-wrong-wrong-wrong"}):
            for path in (VMS, "/metrics", "/apis", "/scheduler/nova/external"):
                method = "POST" if "scheduler" in path else "GET"
                status, answer, got = await server.call(method, path, role=None, headers=headers)
                assert (status, got["WWW-Authenticate"]) == (401, 'Bearer realm="outlive"')
                assert "--state-dir" in json.dumps(answer)
                assert "\n" not in answer["message"]


async def test_what_must_be_open_is_open() -> None:
    async with api() as server:
        for path in ("/healthz", "/livez", "/readyz", "/version", "/", "/schema", "/schema/openapi.json"):
            assert (await server.call("GET", path, role=None))[0] == 200, path
        assert (await server.call("GET", "/metrics", role=Role.VIEWER))[0] == 200
        assert (await server.call("HEAD", "/healthz", role=None))[:2] == (200, "")
    async with api(settings=ApiSettings(metrics_auth="none")) as server:
        assert (await server.call("GET", "/metrics", role=None))[0] == 200


async def test_not_ready_says_why() -> None:
    async with api(ready=lambda: "informers are listing") as server:
        assert (await server.call("GET", "/readyz", role=None))[:2] == (503, "not ready: informers are listing\n")
        assert (await server.call("GET", "/healthz", role=None))[0] == 200


async def test_a_request_keeps_its_id_and_gets_one_otherwise() -> None:
    async with api() as server:
        for sent, kept in (("abc-123", True), ("req-0f", True), ("two words", False), ("x" * 200, False)):
            _, _, headers = await server.call("GET", VMS, headers={"X-Request-Id": sent})
            assert (headers["X-Request-Id"] == sent) is kept
        _, answer, headers = await server.call("GET", f"{VMS}/none", headers={"X-Openstack-Request-Id": "req-7"})
        assert answer["details"]["requestId"] == headers["X-Request-Id"] == "req-7"


async def test_pages_of_other_sites_are_refused_even_with_a_token() -> None:
    async with api() as server:
        assert (await server.call("GET", VMS, headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert (await server.call("GET", VMS, headers={"Sec-Fetch-Site": "same-origin"}))[0] == 200


async def test_a_body_beyond_the_limit_is_refused_declared_or_not() -> None:
    async def chunks() -> Any:
        for _ in range(8):
            yield b"x" * 1024

    async with api(settings=ApiSettings(body_limit=Size(4096))) as server:
        for data in (b"x" * 5000, chunks()):
            headers = {"Content-Type": "application/json"}
            status, answer, _ = await server.call("POST", VMS, data=data, headers=headers)
            assert (status, answer["details"]["code"]) == (413, "body-too-large")
        assert (await server.call("GET", VMS))[0] == 200


async def ended(server: Api, head: bytes) -> bool:
    """Whether the server ends a connection on which this much of a head was sent, and never the rest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    try:
        writer.write(head)
        answer = await asyncio.wait_for(reader.read(), 10)
        return answer == b"" or answer.startswith(b"HTTP/1.1 431")
    except ConnectionError:
        return True
    finally:
        writer.close()


async def test_headers_beyond_the_limit_are_refused() -> None:
    async with api() as server:
        status, answer, _ = await server.call("GET", VMS, headers={f"x-{n}": "y" * 7000 for n in range(10)})
        assert (status, answer["details"]["code"]) == (431, "headers-too-large")
        assert await ended(server, b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000)


@pytest.mark.parametrize(
    "raw", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET \xff HTTP/1.1\r\nhost: a\r\n\r\n"]
)
async def test_what_is_not_http_is_refused_and_the_server_serves_on(raw: bytes) -> None:
    async with api() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(raw)
        answer = await asyncio.wait_for(reader.read(4096), 30)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert b"Traceback" not in answer
        writer.close()
        assert (await server.call("GET", "/healthz"))[0] == 200


async def slow(_: Mapping[str, str]) -> object:
    await asyncio.sleep(30)
    return {}


async def broken(_: Mapping[str, str]) -> object:
    raise ZeroDivisionError("the secret")


async def refusing(query: Mapping[str, str]) -> object:
    raise {"none": NotFound, "down": Unavailable, "lost": Unknown, "bad": BadInput}[query["why"]]("because")


async def counting(query: Mapping[str, str]) -> object:
    return {"asked": dict(query)}


QUERIES = {"/t/slow": slow, "/t/broken": broken, "/t/refusing": refusing, "/t/counting": counting}


async def test_questions_are_answered_and_their_errors_have_statuses() -> None:
    async with api(queries=QUERIES) as server:
        assert (await server.call("GET", "/t/counting?k=2"))[:2] == (200, {"asked": {"k": "2"}})
        for why, expected in (("none", 404), ("down", 503), ("lost", 504), ("bad", 400)):
            status, answer, _ = await server.call("GET", f"/t/refusing?why={why}")
            assert (status, answer["message"]) == (expected, "because")
        assert (await server.call("GET", "/t/counting", role=None))[0] == 401
        assert (await server.call("POST", "/t/counting"))[0] == 405


async def test_a_defect_is_a_500_that_tells_nothing_but_its_id() -> None:
    async with api(queries=QUERIES) as server:
        status, answer, headers = await server.call("GET", "/t/broken")
        assert (status, answer["code"]) == (500, "internal")
        assert answer["requestId"] == headers["X-Request-Id"]
        assert "secret" not in json.dumps(answer)


async def test_a_request_that_takes_too_long_is_ended() -> None:
    async with api(queries=QUERIES, settings=ApiSettings(request_timeout=Duration(0.1))) as server:
        status, answer, _ = await server.call("GET", "/t/slow")
        assert (status, answer["code"]) == (504, "timeout")


async def test_metrics_count_by_route_and_not_by_name() -> None:
    async with api() as server:
        for name in ("a", "b", "c"):
            await server.call("GET", f"{VMS}/{name}")
        await server.call("GET", "/nowhere/at/all")
        _, text, _ = await server.call("GET", "/metrics")
        line = f'outlive_http_requests_total{{method="GET",route="{VMS}/{{name}}",status="404"}} 3.0'
        assert line in text
        assert 'route="unknown",status="404"} 1.0' in text
        assert "nowhere" not in text


async def test_unknown_paths_are_answered_in_the_form_of_their_place() -> None:
    async with api() as server:
        _, plain, _ = await server.call("GET", "/nowhere")
        _, status, _ = await server.call("GET", "/api/v1/pods")
        assert plain["code"] == "not-found"
        assert status["kind"] == "Status"


def test_an_unknown_path_is_no_defect_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    async def claim() -> None:
        async with api() as server:
            for path in ("/nowhere", "/api/v1/pods", f"{GROUP}/nonsense", f"{VMS}/a/b/c"):
                assert (await server.call("GET", path))[0] == 404

    run_real(claim())
    written = capfd.readouterr()
    assert "Traceback" not in written.err + written.out
    assert "api.defect" not in written.err + written.out


# Starting and stopping


async def test_a_port_in_use_is_one_line_with_port_and_remedy() -> None:
    async with api() as server:
        port = int(server.url.rpartition(":")[2])
        app = create_app(deps())
        with pytest.raises(InUse) as caught:
            async with serve_app(app, "127.0.0.1", port):
                pass
        assert caught.value.exit_code == ExitCode.IN_USE
        assert str(port) in str(caught.value)
        assert "--listen" in caught.value.remedy


def deps() -> ApiDeps:
    return ApiDeps(
        store=MemoryStore(SystemClock(), SystemIds()),
        clock=SystemClock(),
        ids=SystemIds(),
        tokens=Tokens([]),
        metrics=Metrics(),
        version="0",
    )


async def test_an_address_of_nobody_here_is_bad_input() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(BadInput):
            async with serve_app(create_app(deps()), host, 0):
                pass


def test_the_state_directory_tells_where_the_server_is_while_it_runs(tmp_path: Path) -> None:
    async def claim() -> None:
        write_whole(tmp_path / "token", b"t" * 20)
        async with api(state_dir=tmp_path) as server:
            found = read_server_file(tmp_path / "server.json")
            assert found is not None
            assert (found.url, found.pid, found.version) == (server.url, os.getpid(), "0.0.0")
            for name in ("server.json", "kubeconfig"):
                assert (tmp_path / name).stat().st_mode & 0o777 == 0o600

    run_real(claim())
    assert not {"server.json", "kubeconfig"} & {path.name for path in tmp_path.iterdir()}


async def test_another_servers_file_is_left_alone(tmp_path: Path) -> None:
    async with api(state_dir=tmp_path):
        (tmp_path / "server.json").write_text('{"url": "http://x", "pid": 1, "version": "9"}')
    assert (tmp_path / "server.json").exists()


def test_ipv6_is_served_where_the_machine_has_it() -> None:
    async def claim() -> None:
        async with (
            serve_app(create_app(deps()), "::1", 0) as server,
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}/healthz") as answer,
        ):
            assert answer.status == 200
        assert server.url.startswith("http://[::1]:")

    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text():
        pytest.skip("no IPv6 here")
    run_real(claim())


# TLS and client certificates


def certificate(directory: Path, name: str, *, ca: str = "") -> tuple[str, str]:
    """Paths of a certificate and its key, signed by itself or by another of these."""
    key, cert = directory / f"{name}.key", directory / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-keyout", str(key), "-out", str(cert), "-addext", "subjectAltName=IP:127.0.0.1"]
    if ca:
        command += ["-CA", str(directory / f"{ca}.pem"), "-CAkey", str(directory / f"{ca}.key")]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)


@pytest.mark.component("openssl")
async def test_with_mtls_only_a_believed_certificate_may_place(tmp_path: Path) -> None:
    certificate(tmp_path, "ca")
    cert, key = certificate(tmp_path, "server", ca="ca")
    good, stranger = certificate(tmp_path, "nova", ca="ca"), certificate(tmp_path, "stranger")
    settings = ApiSettings(tls_certificate=cert, tls_key=key, tls_client_ca=str(tmp_path / "ca.pem"))

    def context(pair: tuple[str, str] | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        if pair is not None:
            made.load_cert_chain(*pair)
        return made

    async with api(settings=settings, scheduler_auth="mtls") as server:
        assert server.url.startswith("https://")
        path = "/scheduler/nova/external"
        status, answer, _ = await server.call("POST", path, ssl=context(None))
        assert (status, answer["code"]) == (401, "unauthenticated")
        status, answer, _ = await server.call("POST", path, role=None, ssl=context(good))
        assert (status, answer["code"]) == (503, "unavailable")
        with pytest.raises(aiohttp.ClientError):
            await server.call("POST", path, ssl=context(stranger))
        assert (await server.call("GET", VMS, ssl=context(None)))[0] == 200
        assert (await server.call("GET", VMS, role=None, ssl=context(good)))[0] == 401
        store = server.client(tls=context(None))
        with pytest.raises(NotFound):
            await store.get(VirtualMachine, "none")
        await store.close()


@pytest.mark.component("openssl")
def test_handshakes_that_are_never_finished_keep_nobody_out(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    settings = ApiSettings(tls_certificate=cert, tls_key=key, connections=64)
    trusted = ssl.create_default_context(cafile=cert)

    async def claim() -> None:
        async with api(settings=settings) as server:
            port = int(server.url.rpartition(":")[2])
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            async with asyncio.timeout(30), aiohttp.ClientSession() as session:
                for _ in range(3):
                    answer = await session.get(f"{server.url}/healthz", ssl=trusted)
                    assert answer.status == 200
            assert sum(reader.at_eof() for reader, _ in strangers) >= 40
            for _, writer in strangers:
                writer.close()

    run_real(claim(), limit_s=60.0)


@pytest.mark.component("openssl")
def test_broken_tls_files_are_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "two")
    for settings in (
        ApiSettings(tls_certificate=cert, tls_key=other),
        ApiSettings(tls_certificate=str(tmp_path / "none.pem"), tls_key=key),
        ApiSettings(tls_certificate=cert, tls_key=key, tls_client_ca=key),
    ):

        async def claim(settings: ApiSettings = settings) -> None:
            with pytest.raises(BadInput) as caught:
                async with serve_app(create_app(deps()), "127.0.0.1", 0, settings=settings):
                    pass
            assert caught.value.place.startswith("api.tls")

        run_real(claim())


# Pages


async def test_pages_load_nothing_from_elsewhere() -> None:
    async with api() as server:
        for path in ("/", "/schema"):
            _, text, headers = await server.call("GET", path, role=None, headers={"Accept": "text/html"})
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
            assert "@import" not in text


async def test_openapi_describes_every_kind_and_refers_to_nothing_that_is_not_there() -> None:
    async with api() as server:
        _, document, _ = await server.call("GET", "/schema/openapi.json", role=None)
        _, group, _ = await server.call("GET", f"/openapi/v3{GROUP}")
        _, index, _ = await server.call("GET", "/openapi/v3")
        assert list(index["paths"]) == ["apis/outlive.dev/v1alpha1"]
        for one in (document, group):
            schemas = one["components"]["schemas"]
            for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(one)):
                assert reference in schemas
        assert "/scheduler/nova/external" in document["paths"]
        for method in ("get", "put", "patch", "delete"):
            assert method in group["paths"][f"{VMS}/{{name}}"]


@pytest.mark.component("chromium")
async def test_the_status_page_shows_the_coverage_in_a_browser(tmp_path: Path) -> None:
    async with api() as server:
        for number, slots in enumerate(((), ("a",), ("a", "b"))):
            status = CoverageStatus(
                required=2, slots=slots, covered=len(slots) > 1, reason="no-host", remedy="add <b>hosts</b>"
            )
            await server.store.create(Coverage(metadata=ObjectMeta(name=f"vm-{number}"), status=status))
        text = await dumped(server, tmp_path, f"/#token={TOKENS[Role.VIEWER]}")
        assert "2 of 3 VMs that need slots do not have all of them: 1 has none." in text
        assert ">1 of 2</td>" in text
        assert "add &lt;b&gt;hosts&lt;/b&gt;" in text
        refused = await dumped(server, tmp_path, "/#token=wrong-wrong-wrong")
        assert "the token is not known" in refused
        assert "/apis/outlive.dev/v1alpha1/hypervisors/{name}" in await dumped(server, tmp_path, "/schema")


@pytest.mark.component("chromium")
async def test_the_status_page_shows_what_is_wrong_and_what_is_in_maintenance(tmp_path: Path) -> None:
    async with api() as server:
        quiet = await dumped(server, tmp_path, f"/#token={TOKENS[Role.VIEWER]}")
        assert shown(quiet, "maintenance") == ""
        for number, ended in enumerate((False, False, True)):
            await server.store.create(fault(f"kvm-{number}", ended=ended))
        spec = ClusterSpec(maintenance=True)
        await server.store.create(Cluster(metadata=ObjectMeta(name="default"), spec=spec))
        text = await dumped(server, tmp_path, f"/#token={TOKENS[Role.VIEWER]}")
        assert shown(text, "maintenance") == "Maintenance: no host is condemned."
        assert "Health 60 of 100; 2 faults are open" in text
        assert "nothing proves &lt;kvm-1&gt; dead" in text
        assert "kvm-2" not in text


@pytest.mark.component("chromium")
async def test_the_status_page_fits_a_phone(tmp_path: Path) -> None:
    async with api() as server:
        meta = ObjectMeta(name="0090a185-f94d-4469-a92b-bc82623604aa")
        remedy = "add a host to rack r3, or move VMs away from the other racks"
        status = CoverageStatus(covered=False, required=1, reason="no-room", message="no host has room", remedy=remedy)
        await server.store.create(Coverage(metadata=meta, status=status))
        await server.store.create(fault("kvm-1", ended=False))
        page = f"{server.url}/#token={TOKENS[Role.VIEWER]}"
        found = await asyncio.to_thread(look, tmp_path, page)
    assert found["width"] <= 390
    assert found["outside"] == []
    assert found["missing"] == [meta.name, "0 of 1", "no host has room", remedy]
    assert found["faults"] < found["cards"] < found["missing_top"]


def look(directory: Path, page: str) -> dict[str, Any]:
    """What a phone shows of the page."""
    with browser(directory / "profile") as tab:
        tab.open(page, width=390, height=844)
        until(lambda: not tab.evaluate("document.getElementById('cluster').hidden"), "the page shows it", 60, 0.1)
        found: dict[str, Any] = json.loads(
            tab.evaluate(
                """JSON.stringify({
                    width: document.documentElement.scrollWidth,
                    outside: [...document.querySelectorAll('td')]
                        .map(one => one.getBoundingClientRect().right).filter(right => right > 390),
                    missing: [...at('missing').querySelectorAll('td')].map(one => one.textContent).filter(Boolean),
                    faults: at('faults').getBoundingClientRect().top,
                    cards: at('cards').getBoundingClientRect().top,
                    missing_top: at('missing').getBoundingClientRect().top,
                })"""
            )
        )
        assert all("404" in one for one in tab.complaints)  # of questions that this server does not know
    return found


@pytest.mark.component("chromium")
async def test_the_status_page_shows_used_committed_failover_and_free_capacity_in_one_picture(tmp_path: Path) -> None:
    gib = 2**30
    rows = [
        GroupOverview(
            group=name,
            zone="zone-a",
            used_bytes=2 * size * gib,
            committed_bytes=size * gib,
            failover_bytes=size * gib,
            free_bytes=4 * size * gib,
            ready=name != "<b>",
        )
        for name, size in (("g", 4), ("<b>", 1))
    ]

    async def overview(_query: Mapping[str, str]) -> list[Any]:
        return [msgspec.to_builtins(row) for row in rows]

    async with api(queries={"/commitments/overview": overview}) as server:
        text = await dumped(server, tmp_path, f"/#token={TOKENS[Role.VIEWER]}")
        assert '<section id="capacity">' in text
        label = "8 GiB used by VMs, 4 GiB committed and not used, 4 GiB kept for failover, 16 GiB free for the group"
        assert f'aria-label="{label} alone"' in text
        widths = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', text)[4:]
        assert widths[:4] == [
            ("used", "0", "25"),
            ("committed", "25", "12.5"),
            ("failover", "37.5", "12.5"),
            ("free", "50", "50"),
        ]
        assert [width for _, _, width in widths[4:]] == ["6.25", "3.125", "3.125", "12.5"]
        assert "&lt;b&gt;" in text
        assert "(2 GiB)" in text
    async with api() as server:
        assert '<section id="capacity" hidden' in await dumped(server, tmp_path, f"/#token={TOKENS[Role.VIEWER]}")


def fault(host: str, *, ended: bool) -> Fault:
    at = as_datetime(0.0)
    return Fault(
        metadata=ObjectMeta(name=f"{host}.fence-unconfirmed"),
        code="fence-unconfirmed",
        subject=ObjectRef(kind="Hypervisor", name=host),
        message=f"nothing proves <{host}> dead",
        delta=20,
        ended=ended,
        first_seen=at,
        last_seen=at,
    )


def shown(page: str, name: str) -> str:
    """What stands in the paragraph of this id."""
    found = re.search(rf'<p id="{name}"[^>]*>([^<]*)</p>', page)
    assert found is not None
    return found[1]


async def dumped(server: Api, directory: Path, path: str) -> str:
    """The page as a browser has it after its scripts ran."""
    process = await asyncio.create_subprocess_exec(
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"),
        *(f"--user-data-dir={directory}/profile", "--dump-dom", f"{server.url}{path}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 50)
    return out.decode()
