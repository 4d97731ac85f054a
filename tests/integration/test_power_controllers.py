"""BMCs that are broken in every way, and what their drivers say of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.bmc import PASSWORD, USERNAME, HalfOpen, Ipmi, Redfish, StateFile
from tests.support.loops import run_real
from tests.support.odd_redfish import WORKING, OddRedfish

from outlive.base import NotFound, OutliveError, Unavailable, Unknown
from outlive.drivers.bmc import Credential, PowerControllers, ProgramDriver, RedfishDriver, reading_of, uuid_of
from outlive.node.ports import PowerReading, PowerRefused, PowerState
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, ObjectMeta

UUID = "4c4c4544-0051-3010-8052-b4c04f4d4b32"
LIMIT_S, HUNG_S = 30.0, 3.0
"""For what answers, on a machine that does other things; and for what does not."""
Controller = Ipmi | Redfish


@pytest.fixture
def system(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "system").create()


@pytest.fixture
def ipmi(tmp_path: Path, system: StateFile) -> Iterator[Ipmi]:
    one = Ipmi(tmp_path, "ipmi", UUID, system.hook)
    one.start()
    yield one
    one.go_on()
    one.stop()


@pytest.fixture
def redfish(tmp_path: Path, system: StateFile) -> Iterator[Redfish]:
    one = Redfish(tmp_path, "redfish", UUID, system.hook)
    one.start()
    yield one
    one.go_on()
    one.stop()


def host(driver: str, address: str, **options: str) -> Hypervisor:
    fencing = FencingSpec(driver=driver, address=address, secret="rack-3", system_uuid=UUID, options=options)
    return Hypervisor(metadata=ObjectMeta(name="kvm-7"), spec=HypervisorSpec(fencing=fencing))


def port(username: str = USERNAME, password: str = PASSWORD, limit_s: float = LIMIT_S, **given) -> PowerControllers:
    async def credential(secret: str) -> Credential:
        return Credential(username, password)

    return PowerControllers(credential, limit_s=limit_s, **given)


def says(call) -> str:
    """The one line of what fails."""
    with pytest.raises(OutliveError) as error:
        run_real(call)
    assert "\n" not in str(error.value)
    assert PASSWORD not in str(error.value)
    return str(error.value)


def pinned(one: Redfish) -> str:
    der = ssl.PEM_cert_to_DER_cert(one.certificate.read_text(encoding="utf-8"))
    return "sha256:" + hashlib.sha256(der).hexdigest()


# --- IPMI


ipmi_test = pytest.mark.component("ipmi")


@ipmi_test
def test_ipmi_refusals_are_one_clear_line_each(ipmi: Ipmi) -> None:
    here = host("ipmi", ipmi.address, cipherSuite="3")
    assert says(port(password="wrong").read(here)).startswith("it refuses the password of user admin (")
    assert says(port(username="nobody").power_off(here)).startswith("it has no user nobody (")
    assert "cipher suite 17" in says(port().read(host("ipmi", ipmi.address)))
    assert "longer than IPMI takes" in says(port(password="x" * 21).read(here))
    assert ipmi.commands == 0


@ipmi_test
@pytest.mark.parametrize("address", ["", "-v", "bmc 7", "https://10.0.0.5", "bmc:0", "bmc:65536", "[::1"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(address: str) -> None:
    assert "is no host with an optional port" in says(port().power_off(host("ipmi", address)))


@ipmi_test
def test_a_hung_controller_is_unavailable_and_carries_out_nothing_later(ipmi: Ipmi, system: StateFile) -> None:
    ipmi.hang()
    said = says(port(limit_s=HUNG_S).power_off(host("ipmi", ipmi.address, cipherSuite="3")))
    assert said.startswith("no answer from 127.0.0.1:")
    ipmi.go_on()
    reading = run_real(port().read(host("ipmi", ipmi.address, cipherSuite="3")))
    assert (reading, ipmi.commands) == (PowerReading(state=PowerState.ON, system_uuid=UUID), 0)


@ipmi_test
def test_an_order_that_is_not_answered_in_time_may_have_been_carried_out(ipmi: Ipmi) -> None:
    ipmi.slow(HUNG_S + 2)
    with pytest.raises(Unknown, match="may or may not switch off"):
        run_real(port(limit_s=HUNG_S).power_off(host("ipmi", ipmi.address, cipherSuite="3")))


@ipmi_test
def test_a_caller_that_gives_up_leaves_no_process_and_no_password_behind(ipmi: Ipmi) -> None:
    ipmi.hang()

    async def given_up() -> list[str]:
        task = asyncio.create_task(port().read(host("ipmi", ipmi.address, cipherSuite="3")))
        async with asyncio.timeout(LIMIT_S):
            while not (found := children()):  # noqa: ASYNC110 - another thread starts it
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    seen = run_real(given_up())
    assert any("ipmitool" in one for one in seen)
    assert not any(PASSWORD in one for one in seen)
    assert children() == []


def children() -> list[str]:
    """Command lines and environments of what this process has started."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split():
        with contextlib.suppress(OSError):
            texts = [Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ")]
            if "ipmitool" in texts[0]:
                found.append("\0".join(texts))
    return found


def test_a_uuid_is_read_in_the_order_of_bytes_in_which_it_is_the_hosts() -> None:
    known = uuid.UUID(UUID)
    for raw in (known.bytes, known.bytes_le, known.bytes[::-1]):
        assert uuid_of(raw, UUID) == UUID
        assert uuid_of(raw, str(uuid.UUID(int=7))) is None
    assert uuid_of(bytes(16), str(uuid.UUID(int=0))) is None, "which any number of machines may say"


# --- Redfish


def test_redfish_is_believed_by_authority_or_by_fingerprint(redfish: Redfish) -> None:
    at = redfish.address
    authority = redfish.certificate.read_text(encoding="utf-8")
    options = ({"certificateAuthority": authority}, {"fingerprint": pinned(redfish)}, {"insecure": "true"})
    for each in options:
        reading = run_real(port().read(host("redfish", at, **each)))
        assert reading == PowerReading(state=PowerState.ON, system_uuid=UUID)
    assert "its certificate is not trusted" in says(port().read(host("redfish", at)))
    other = "sha256:" + "ab" * 32
    assert f"its certificate is {pinned(redfish)}" in says(port().power_off(host("redfish", at, fingerprint=other)))
    assert "is not sha256" in says(port().power_off(host("redfish", at, fingerprint="sha256:12")))
    assert redfish.commands == 0


def test_redfish_finds_its_only_system_and_names_what_is_wrong(redfish: Redfish) -> None:
    pin = pinned(redfish)
    base = f"{redfish.host}:{redfish.port}"
    assert run_real(port().read(host("redfish", base, fingerprint=pin))).system_uuid == UUID
    assert "refuses user admin" in says(port(password="wrong").read(host("redfish", base, fingerprint=pin)))
    assert "refuses user admin" in says(
        port(password="wrong").power_off(host("redfish", redfish.address, fingerprint=pin))
    )
    missing = f"https://{base}/redfish/v1/Systems/7"
    assert f"it has no {missing}" in says(port().read(host("redfish", missing, fingerprint=pin)))
    assert "in the clear" in says(port().read(host("redfish", "http://10.0.0.5")))
    assert redfish.commands == 0


def test_a_state_on_the_way_is_unknown(redfish: Redfish) -> None:
    (redfish.directory / "state").write_text("PoweringOff\n", encoding="utf-8")
    reading = run_real(port().read(host("redfish", redfish.address, fingerprint=pinned(redfish))))
    assert reading == PowerReading(state=PowerState.UNKNOWN, system_uuid=UUID)


@pytest.mark.parametrize("document", [{}, [], {"UUID": 7, "PowerState": True}, {"PowerState": "off"}, "x"])
def test_what_is_no_system_says_nothing(document: object) -> None:
    assert reading_of(document) == PowerReading(state=PowerState.UNKNOWN)


@pytest.mark.parametrize("driver", ["redfish", "ipmi"])
def test_a_port_that_takes_connections_and_says_nothing_is_unavailable(driver: str) -> None:
    with contextlib.closing(HalfOpen()) as silent:
        at = f"{silent.host}:{silent.port}"
        hasty = port(limit_s=HUNG_S)
        for call in (hasty.read, hasty.power_off):
            with pytest.raises(Unavailable, match="no answer from"):
                run_real(call(host(driver, at)))


def test_a_hung_redfish_service_is_unavailable_and_carries_out_nothing_later(redfish: Redfish) -> None:
    redfish.hang()
    with pytest.raises(Unavailable, match="no answer"):
        run_real(port(limit_s=HUNG_S).power_off(host("redfish", redfish.address, fingerprint=pinned(redfish))))
    redfish.go_on()
    assert run_real(port().read(host("redfish", redfish.address, fingerprint=pinned(redfish)))).system_uuid == UUID
    assert redfish.commands == 0


# --- Redfish as BMCs have it


@pytest.fixture
def odd(tmp_path: Path, system: StateFile) -> Iterator[Callable[[str], OddRedfish]]:
    made: list[OddRedfish] = []

    def start(oddities: str) -> OddRedfish:
        one = OddRedfish(tmp_path, f"odd-{len(made)}", UUID, system.hook, oddities)
        made.append(one)
        one.start()
        return one

    yield start
    for one in made:
        one.stop()


@pytest.mark.parametrize("oddity", WORKING)
@pytest.mark.parametrize("path", ["", "/redfish/v1/Systems/1", "/redfish/v1/Systems/1/"])
def test_an_odd_bmc_is_read_and_switches(odd, system: StateFile, oddity: str, path: str) -> None:
    bmc = odd(oddity)
    here, bmcs = host("redfish", f"http://{bmc.host}:{bmc.port}{path}"), port(drivers={"redfish": RedfishDriver()})
    run_real(bmcs.power_off(here))
    assert not system.is_on
    run_real(bmcs.power_off(here))
    assert run_real(bmcs.read(here)) == PowerReading(state=PowerState.OFF, system_uuid=UUID)
    run_real(bmcs.power_on(here))
    assert system.is_on
    assert run_real(bmcs.check(here)) == ""
    assert bmc.commands == 3


def test_a_session_is_used_again_and_replaced_when_it_ends(odd) -> None:
    bmc = odd("session")
    here, bmcs = host("redfish", bmc.address), port(drivers={"redfish": RedfishDriver()})
    for _ in range(45):
        assert run_real(bmcs.read(here)).state is PowerState.ON
    opened = [one for one in bmc.requests if one.startswith("POST")]
    assert (len(opened), bmc.sessions) == (3, 1), "each is good for twenty requests"
    assert "refuses user admin or the password: the user name" in says(port(password="wrong").read(here))
    assert "it gives user admin no session: all sessions are taken" in says(
        port(drivers={"redfish": RedfishDriver()}).read(host("redfish", odd("no-session").address))
    )
    assert "auth 'digest' is neither basic nor session" in says(bmcs.read(host("redfish", bmc.address, auth="digest")))


def test_a_bmc_that_is_to_be_asked_by_sessions_never_sees_basic_authentication(odd) -> None:
    bmc = odd("session")
    run_real(port(drivers={"redfish": RedfishDriver()}).read(host("redfish", bmc.address, auth="session")))
    assert [one.split()[0] for one in bmc.requests] == ["GET", "POST", "GET"]
    assert "disabled" in says(
        port(drivers={"redfish": RedfishDriver()}).read(host("redfish", bmc.address, auth="basic"))
    )


def test_a_password_follows_no_redirect_to_another_host(odd) -> None:
    bmc = odd("elsewhere")
    for call in (port().read, port().power_off):
        assert f"it sends us elsewhere, to http://127.0.0.2:{bmc.port}" in says(call(host("redfish", bmc.address)))
    assert len(bmc.requests) == 2


def test_an_order_that_is_refused_says_what_the_bmc_said(odd, system: StateFile) -> None:
    readonly = host("redfish", odd("readonly").address)
    with pytest.raises(PowerRefused, match="user admin may not do that: the account is read-only"):
        run_real(port().power_off(readonly))
    assert run_real(port().check(readonly)) == (
        "its user admin may not switch it off (role ReadOnly): give it the role Operator there"
    )
    no_off = host("redfish", odd("no-off").address)
    assert "ForceOff is not supported for Reset" in says(port().power_off(no_off))
    assert run_real(port().check(no_off)) == (
        "its system does not take ForceOff, only On, GracefulShutdown: see its firmware"
    )
    missing = host("redfish", odd("").address + "9")
    with pytest.raises(PowerRefused, match=r"it has no .*: there is no /redfish/v1/Systems/19"):
        run_real(port().read(missing))
    assert system.is_on


# --- programs, and settings


@pytest.fixture
def program(tmp_path: Path, system: StateFile) -> Callable[..., PowerControllers]:
    def made(text: str, limit_s: float = LIMIT_S) -> PowerControllers:
        (tmp_path / "strip").write_text("#!/bin/sh\n" + text, encoding="utf-8")
        (tmp_path / "strip").chmod(0o755)
        return port(drivers={"command": ProgramDriver(tmp_path)}, limit_s=limit_s)

    return made


def test_a_program_reads_and_switches(program, system: StateFile) -> None:
    text = f"""
grep -q '"password": "{PASSWORD}"' "$OUTLIVE_POWER" || exit 6
[ "$2" = socket-3 ] || exit 4
state=$({system.hook[0]} status)
case $1 in read) echo '{{"state": "'$state'", "systemUuid": "{UUID}"}}' ;; *) {system.hook[0]} $1 ;; esac
"""
    strips, here = program(text), host("command", "socket-3", command="strip")
    assert run_real(strips.read(here)) == PowerReading(state=PowerState.ON, system_uuid=UUID)
    run_real(strips.power_off(here))
    assert run_real(strips.read(here)).state is PowerState.OFF
    assert not system.is_on
    with pytest.raises(NotFound):
        run_real(strips.read(host("command", "socket-4", command="strip")))


def test_how_a_program_ends_says_whether_it_may_have_switched(program) -> None:
    here = host("command", "", command="strip")
    for text, kind in (("exit 6", Unavailable), ("exit 4", NotFound), ("exit 1", Unknown)):
        with pytest.raises(kind):
            run_real(program(text).power_off(here))
    with pytest.raises(Unknown):
        run_real(program("sleep 60", limit_s=HUNG_S).power_off(here))
    assert "printed no state" in says(program("echo on").read(here))
    assert "cannot be run" in says(port(drivers={"command": ProgramDriver(Path("/nowhere"))}).power_off(here))
    for name in ("", "../strip", "/bin/sh", "-x"):
        assert "name a program in" in says(program("exit 0").power_off(host("command", "", command=name)))


def test_settings_that_no_driver_knows_are_named(system: StateFile) -> None:
    assert "driver 'ipmy' is none of ipmi, redfish and command" in says(port().read(host("ipmy", "x")))
    assert "has no option colour" in says(port().read(host("ipmi", "x", colour="red")))
    assert "cipher suite 0 is none of 3, 8, 12, 17" in says(port().read(host("ipmi", "x", cipherSuite="0")))
    with pytest.raises(NotFound):
        run_real(port().read(host("none", "")))


def test_a_tool_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ipmitool is not installed on this host" in says(port().read(host("ipmi", "10.0.0.5")))
