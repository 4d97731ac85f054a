"""The server's own authority and certificate: made once, renewed in time, and pinned by clients."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from tests.support.api import api
from tests.support.calendar import DAY_S, Calendar

from outlive.api import AUTHORITY_FILE, CERTIFICATE_FILE, ServerTls, names_of
from outlive.base import BadInput, Forbidden, NotFound, Random, SystemClock, Unavailable
from outlive.resources import Hypervisor
from outlive.store import (
    HttpStore,
    check_address,
    fetch_authority,
    first_fingerprint,
    make_client_context,
    parse_fingerprint,
    shown_address,
)


def certificate(directory: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / CERTIFICATE_FILE).read_bytes())


def test_the_authority_stays_and_keys_are_private(tmp_path: Path) -> None:
    first = ServerTls(tmp_path, ["10.0.0.1"], SystemClock())
    again = ServerTls(tmp_path, ["10.0.0.1"], SystemClock())
    assert first.fingerprint == again.fingerprint == first_fingerprint((tmp_path / AUTHORITY_FILE).read_text())
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("ca.key", "server.key"))


def test_the_certificate_is_renewed_before_it_ends_and_for_another_address(tmp_path: Path) -> None:
    clock = Calendar()
    tls = ServerTls(tmp_path, ["10.0.0.1"], clock)
    first = certificate(tmp_path).serial_number
    clock.ahead_s = 200 * DAY_S
    assert not tls.renew()
    clock.ahead_s = 250 * DAY_S
    assert tls.renew()
    second = certificate(tmp_path).serial_number
    assert second != first
    ServerTls(tmp_path, ["10.0.0.2"], clock)
    assert certificate(tmp_path).serial_number != second


def test_a_part_that_is_missing_after_it_was_used_is_not_made_anew(tmp_path: Path) -> None:
    ServerTls(tmp_path, [], SystemClock())
    (tmp_path / "ca.key").unlink()
    with pytest.raises(BadInput, match="this part of the server's authority is missing") as caught:
        ServerTls(tmp_path, [], SystemClock())
    assert caught.value.place.endswith("ca.key")


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    ServerTls(tmp_path, [], SystemClock())
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(BadInput, match="put both back"):
        ServerTls(tmp_path, [], SystemClock())


def test_a_key_that_others_read_is_refused(tmp_path: Path) -> None:
    ServerTls(tmp_path, [], SystemClock())
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(Forbidden, match="others may read it") as caught:
        ServerTls(tmp_path, [], SystemClock())
    assert caught.value.remedy == f"chmod 600 {tmp_path / 'ca.key'}"
    (tmp_path / "ca.key").chmod(0o600)
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Forbidden, match="is a link"):
        ServerTls(tmp_path, [], SystemClock())


def test_names_of_a_server_that_listens_everywhere() -> None:
    assert {"localhost", "127.0.0.1", "vip.example"} <= set(names_of("0.0.0.0", ["vip.example"]))
    assert names_of("10.0.0.1")[0] == "10.0.0.1"


async def test_clients_pin_the_authority(tmp_path: Path) -> None:
    tls = ServerTls(tmp_path, [], SystemClock())
    async with api(tls=tls, authority=lambda: tls.published) as served:
        assert served.url.startswith("https://")
        pem = await fetch_authority(served.url, "SHA256:" + tls.fingerprint.upper())
        pinned = make_client_context(pem, pinned=tls.fingerprint)
        store = HttpStore(served.url, "admin-token-of-the-tests", clock=SystemClock(), random=Random(1), tls=pinned)
        assert (await store.list(Hypervisor)).items == ()
        assert tls.renew() is False
        (tmp_path / CERTIFICATE_FILE).unlink()
        assert tls.renew() is True  # new connections see it
        async with aiohttp.ClientSession() as session, session.get(served.url + "/healthz", ssl=pinned) as answer:
            assert answer.status == 200
        with pytest.raises(Forbidden, match="and 00"):
            await fetch_authority(served.url, "00" * 32)
        plain = HttpStore(served.url, "x", clock=SystemClock(), random=Random(1))
        with pytest.raises(Unavailable, match="is not believed") as caught:
            await plain.list(Hypervisor)
        assert "--fingerprint" in caught.value.remedy
        await store.close()
        await plain.close()


async def test_an_authority_of_another_server_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tls, other = (ServerTls(tmp_path / name, [], SystemClock()) for name in "ab")
    async with api(tls=tls, authority=lambda: tls.published) as served:
        context = make_client_context(other.authority, pinned=other.fingerprint)
        store = HttpStore(served.url, "x", clock=SystemClock(), random=Random(1), tls=context)
        with pytest.raises(Unavailable, match="is not believed"):
            await store.list(Hypervisor)
        await store.close()
    with pytest.raises(Forbidden, match="was expected"):
        make_client_context(tls.authority, pinned=other.fingerprint)


async def test_an_authority_that_comes_beside_the_pinned_one_is_not_believed(tmp_path: Path) -> None:
    """Somebody in between shows the real authority and an own one, and the certificate of the own one."""

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    real, between = (ServerTls(tmp_path / name, [], SystemClock()) for name in "ab")
    both = real.authority + between.authority
    async with api(tls=between, authority=lambda: both) as served:
        pem = await fetch_authority(served.url, real.fingerprint)
        assert pem == real.authority
        pinned = make_client_context(pem, pinned=real.fingerprint)
        store = HttpStore(served.url, "x", clock=SystemClock(), random=Random(1), tls=pinned)
        with pytest.raises(Unavailable, match="is not believed"):
            await store.list(Hypervisor)
        await store.close()
    assert len(make_client_context(both, pinned=real.fingerprint).get_ca_certs()) == 1
    with pytest.raises(BadInput, match="3 certificates"):
        make_client_context(both + real.authority, pinned=real.fingerprint)
    assert len(make_client_context(both).get_ca_certs()) == 2  # a file of the operator's, with names compared


@pytest.mark.parametrize("unit", ["Example Corporation", "Outlive"])
async def test_the_name_of_a_server_is_compared_where_the_pinned_authority_is_no_server_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    """A company's authority signs for all of its machines: each could answer in the server's place, whatever the
    authority is called (here ``Outlive HOST``)."""

    monkeypatch.setattr("outlive.api.tls.OWN_UNIT", unit)
    company = ServerTls(tmp_path, ["printer.example"], SystemClock())
    async with api(tls=company, authority=lambda: company.published) as served:
        pinned = make_client_context(company.authority, pinned=company.fingerprint)
        store = HttpStore(served.url, "x", clock=SystemClock(), random=Random(1), tls=pinned)
        with pytest.raises(Unavailable, match="is not believed"):
            await store.list(Hypervisor)
        await store.close()


async def test_what_was_compared_is_what_is_believed_and_kept(tmp_path: Path) -> None:
    tls = ServerTls(tmp_path, [], SystemClock())
    async with api(tls=tls, authority=lambda: f"# beside it\n{tls.authority}\n# behind it\n") as served:
        assert await fetch_authority(served.url, tls.fingerprint) == tls.authority


@pytest.mark.slow
async def test_a_server_without_an_authority_of_its_own_says_so() -> None:
    async with api() as served:
        with pytest.raises(NotFound, match="no authority of its own"):
            await fetch_authority(served.url, "00" * 32)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://10.0.0.1:8080"])
def test_addresses_that_may_be_asked(url: str) -> None:
    check_address(url)


@pytest.mark.parametrize("url", ["http://10.0.0.1", "http://kvm-1:8080", "http://127.0.0.1.example:1"])
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(Forbidden, match="plain HTTP to another machine"):
        check_address(url)
    check_address(url, insecure=True)


@pytest.mark.parametrize("url", ["ftp://x", "https://", "x:1", "https://a:b", "http://[::1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadInput, match="is no address of a server"):
        check_address(url)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "0" * 65])
def test_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(BadInput, match="is no fingerprint"):
        parse_fingerprint(text)


def test_what_is_no_certificate() -> None:
    with pytest.raises(BadInput, match="no certificate"):
        first_fingerprint("nonsense")


def test_an_address_is_logged_without_the_credentials_in_it() -> None:
    assert shown_address("https://user:to@ken@10.0.0.1:8080/a") == "https://10.0.0.1:8080/a"
    assert shown_address("https://[::1]:8080") == "https://[::1]:8080"
