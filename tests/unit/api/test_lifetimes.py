"""How tokens end and are renewed: at every instant what a host has on its disk is good, whatever is lost or crashes."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.calendar import DAY_S, Calendar
from tests.support.loops import run, run_real
from tests.support.token_host import FIRST, NAME, START_S, Crash, Disk, Line, TokenServer, look

from outlive.api import LOOK_S, Identity, Role, StateToken, TokenUpkeep, Unauthenticated, digest_of, file_faults
from outlive.base import Refused, SystemIds, as_datetime
from outlive.resources import LASTS, LONGEST, OVERLAP, Fault, ObjectMeta, Token

STEPS = (
    "before the next secret is kept",
    "after the next secret is kept",
    "before the former one is kept",
    "before the next one takes its place",
    "after it took its place",
)
FAULTS = st.sampled_from(["", "", "", "request lost", "answer lost", "answer lost"])
LIVES = st.lists(
    st.tuples(
        st.lists(FAULTS, max_size=3),
        st.sampled_from(["", "", *STEPS]),
        st.sampled_from(
            ["", "the server starts anew", "first uses are written down", "ten minutes pass", "a day passes"]
        ),
    ),
    min_size=1,
    max_size=12,
)


def upkeep(server: TokenServer, directory: Path) -> TokenUpkeep:
    return TokenUpkeep(server.store, server.stored, state(directory, server.clock), clock=server.clock)


def state(directory: Path, clock: Calendar) -> StateToken:
    return StateToken(directory / "token", clock=clock, ids=SystemIds())


@pytest.mark.slow
@given(lives=LIVES)
def test_no_lost_answer_and_no_crash_locks_a_host_out(tmp_path_factory: pytest.TempPathFactory, lives: list) -> None:
    """Every step of a renewal may be the last one before a crash, every request and answer may get lost, the server may
    start anew, and any time may pass in between."""
    directory = tmp_path_factory.mktemp("state")

    async def story() -> None:
        server, crashes = TokenServer(), [""]

        def step(name: str) -> None:
            if crashes[0] == name:
                crashes[0] = ""
                raise Crash

        await server.begin()
        await server.mark()
        disk, kept = Disk(step), upkeep(server, directory)
        for seed, (faults, crash, then) in enumerate(lives):
            crashes[0] = crash
            await look(server, disk, iter(faults), seed)
            assert server.knows(disk.token), (seed, faults, crash)
            if then == "the server starts anew":
                await server.follow()
            elif then:
                await kept.update()
                server.clock.ahead_s += {"ten minutes pass": OVERLAP.total_seconds() + 1.0, "a day passes": DAY_S}.get(
                    then, 0.0
                )
            assert server.knows(disk.token), (seed, then)
        crashes[0] = ""
        for seed in (100, 101):
            await look(server, disk, iter(()), seed)
            await kept.update()
        assert disk.token != FIRST
        server.clock.ahead_s += OVERLAP.total_seconds() + 1.0
        assert server.knows(disk.token)
        assert not server.knows(FIRST)

    run(story())


@pytest.mark.parametrize("step", STEPS)
async def test_a_host_that_crashes_in_each_step_ends_its_renewal_later(tmp_path: Path, step: str) -> None:
    server, crashed = TokenServer(), []

    def once(name: str) -> None:
        if name == step and not crashed:
            crashed.append(name)
            raise Crash

    await server.begin()
    await server.mark()
    disk = Disk(once)
    assert not await look(server, disk, iter(()), 1)
    assert crashed == [step]
    assert server.knows(disk.token)
    assert await look(server, disk, iter(()), 2)
    assert disk.token != FIRST
    assert server.knows(disk.token)


async def test_a_host_renews_when_a_third_of_the_time_is_left_and_not_before(tmp_path: Path) -> None:
    server, disk = TokenServer(), Disk(lambda _: None)
    await server.begin()
    server.clock.ahead_s = 59 * DAY_S
    await look(server, disk, iter(()), 1)
    assert disk.token == FIRST
    server.clock.ahead_s = 61 * DAY_S
    await look(server, disk, iter(()), 2)
    assert (disk.former, server.knows(FIRST), server.knows(disk.token)) == (FIRST, True, True)
    await upkeep(server, tmp_path).update()
    found = await server.store.get(Token, NAME)
    assert (found.digest, found.former_digest) == (digest_of(disk.token.encode()), digest_of(FIRST.encode()))
    assert (found.host, found.machine_id, found.role) == ("kvm-1", "m" * 32, "host")
    assert found.expires == as_datetime(server.clock.now()) + LASTS
    server.clock.ahead_s += OVERLAP.total_seconds() + 1.0
    assert (server.knows(FIRST), server.knows(disk.token)) == (False, True)


async def test_a_host_that_was_off_for_too_long_is_told_to_join_again(tmp_path: Path) -> None:
    server = TokenServer()
    await server.begin()
    server.clock.ahead_s = 91 * DAY_S
    with pytest.raises(Unauthenticated, match=r"the token host.kvm-1 ended at 2027-04-15") as caught:
        server.stored.identify(FIRST.encode())
    assert "outlive token create --join --host kvm-1" in caught.value.remedy


async def test_a_host_whose_disk_forgot_the_last_step_ends_it_with_the_next_secret(tmp_path: Path) -> None:
    """The server knows the next secret alone, which still lies beside the token: the connection goes on with that one
    (``HttpStore``), and the look puts it in its place."""
    server, disk = TokenServer(), Disk(lambda _: None)
    await server.begin()
    await server.mark()
    await look(server, disk, iter(()), 1)
    await upkeep(server, tmp_path).update()
    server.clock.ahead_s += OVERLAP.total_seconds() + 1.0
    fresh, disk.next, disk.token = disk.token, disk.token, FIRST
    assert not server.knows(disk.token)
    await look(server, disk, iter(()), 2, token=fresh)
    assert (disk.token, disk.next, server.knows(disk.token)) == (fresh, "", True)


async def test_a_secret_that_was_renewed_renews_nothing_more(tmp_path: Path) -> None:
    """Who has copied the former secret cannot make another one of it."""
    server, disk = TokenServer(), Disk(lambda _: None)
    await server.begin()
    await server.mark()
    await look(server, disk, iter(()), 1)
    await upkeep(server, tmp_path).update()
    thief = Disk(lambda _: None)
    await server.mark()
    await look(server, thief, iter(()), 2)
    assert not server.knows(thief.next or "-")
    assert thief.token == FIRST
    assert server.knows(disk.token)


async def test_a_secret_renews_nothing_from_the_first_use_of_the_next_one_on(tmp_path: Path) -> None:
    """Also before that use is written down."""
    server, disk = TokenServer(), Disk(lambda _: None)
    await server.begin()
    await server.mark()
    await look(server, disk, iter(()), 1)
    server.identify(disk.token)
    thief = Line(server, FIRST, iter(()))
    with pytest.raises(Refused, match="was renewed at"):
        await thief.command("/token/renew", {"digest": digest_of(b"of-the-thief")})
    assert server.knows(disk.token)
    await upkeep(server, tmp_path).update()
    assert server.knows(disk.token)


async def test_the_old_secret_ends_ten_minutes_after_the_new_one_was_used_however_often_it_is_used_itself(
    tmp_path: Path,
) -> None:
    """A watch shows the secret that it began with, before each event; and so does who has stolen it."""
    server, disk = TokenServer(), Disk(lambda _: None)
    await server.begin()
    await server.mark()
    await look(server, disk, iter(()), 1)
    kept = upkeep(server, tmp_path)
    server.identify(disk.token)
    server.identify(FIRST)
    await kept.update()
    server.identify(FIRST)
    server.clock.ahead_s += OVERLAP.total_seconds() + 1.0
    assert (server.knows(FIRST), server.knows(disk.token)) == (False, True)


async def test_a_last_use_is_written_at_most_once_an_hour(tmp_path: Path) -> None:
    server = TokenServer()
    await server.begin()
    kept, versions = upkeep(server, tmp_path), set()
    for _ in range(3 * 180):
        server.identify(FIRST)
        await kept.update()
        versions.add((await server.store.get(Token, NAME)).metadata.resource_version)
        server.clock.ahead_s += LOOK_S
    assert len(versions) == 3
    assert (await server.store.get(Token, NAME)).last_used is not None


async def test_a_token_without_an_end_and_one_with_a_far_end_get_one(tmp_path: Path) -> None:
    server = TokenServer()
    now = as_datetime(server.clock.now())
    for name, expires in (("old", None), ("far", now + timedelta(days=5000))):
        await server.store.create(
            Token(metadata=ObjectMeta(name=name), role="viewer", digest=digest_of(name.encode()), expires=expires)
        )
    await server.begin()
    await upkeep(server, tmp_path).update()
    assert (await server.store.get(Token, "old")).expires == now + LASTS
    assert (await server.store.get(Token, "far")).expires == now + LONGEST


async def test_a_token_that_ends_soon_is_a_fault_and_a_short_one_is_none(tmp_path: Path) -> None:
    server = TokenServer()
    now = as_datetime(server.clock.now())
    for name, days in (("nova", 90), ("guest", 1)):
        await server.store.create(
            Token(
                metadata=ObjectMeta(name=name),
                role="scheduler",
                digest=digest_of(name.encode()),
                issued=now,
                expires=now + timedelta(days=days),
            )
        )
    await server.begin()
    kept = upkeep(server, tmp_path)
    server.clock.ahead_s = 75 * DAY_S
    assert kept._end_faults() == []
    server.clock.ahead_s = 77 * DAY_S
    await kept._recorder.record(kept._end_faults())
    found = {one.name: one for one in (await server.store.list(Fault)).items}
    assert set(found) == {"token-ends.nova", f"token-ends.{NAME}"}
    assert found["token-ends.nova"].message.startswith("the token nova (scheduler) ends on 2027-04-15")
    assert "outlive token rotate nova" in found["token-ends.nova"].remedy


def test_lines_of_a_file_that_end_and_an_old_file_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("x")
    os.utime(path, (START_S, START_S))
    clock = Calendar(START_S)
    ends = as_datetime(clock.now()) + timedelta(days=20)
    known = [("s" * 20, Identity("nova", Role.SCHEDULER, expires=ends)), ("t" * 20, Identity("grafana", Role.VIEWER))]
    faults = file_faults(path, known)
    assert list(faults(clock.now())) == []
    clock.ahead_s = 7 * DAY_S
    assert [one.fields["names"] for one in faults(clock.now())] == ["nova"]
    faults = file_faults(path, known[1:])
    assert list(faults(clock.now())) == []
    clock.ahead_s = 91 * DAY_S
    assert [one.fields["names"] for one in faults(clock.now())] == ["grafana"]


def test_a_token_that_several_servers_share_is_replaced_by_somebody_and_the_one_before_is_good_for_ten_minutes(
    tmp_path: Path,
) -> None:
    clock = Calendar()
    kept = StateToken(tmp_path / "token", clock=clock, ids=SystemIds(), shared=True)
    first = (tmp_path / "token").read_text().strip()
    clock.ahead_s += 80 * DAY_S
    assert not kept.renew()
    made = as_datetime(clock.now() - 3600.0)
    assert kept.replace("the-next-secret-of-all-servers", made)
    assert not kept.replace("the-next-secret-of-all-servers", made)
    found = kept.identify(b"the-next-secret-of-all-servers")
    assert found is not None
    assert found.expires is not None
    assert abs((found.expires - made - LASTS).total_seconds()) < 1.0
    assert kept.identify(first.encode()) is not None
    clock.ahead_s += OVERLAP.total_seconds() + 1.0
    with pytest.raises(Unauthenticated):
        kept.identify(first.encode())


def test_the_token_of_a_state_directory_is_renewed_and_the_one_before_is_good_for_ten_minutes(tmp_path: Path) -> None:
    clock, path = Calendar(), tmp_path / "token"
    kept = state(tmp_path, clock)
    first = path.read_text().strip()
    assert kept.identify(first.encode()) == Identity("state-dir", Role.ADMIN, expires=kept._issued + LASTS)
    assert not kept.renew()
    clock.ahead_s = 61 * DAY_S
    kept.renew()
    second = path.read_text().strip()
    assert second != first
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept.identify(first.encode()) is not None
    assert kept.identify(second.encode()) is not None
    assert kept.identify(b"x" * 20) is None
    clock.ahead_s += OVERLAP.total_seconds() + 1.0
    with pytest.raises(Unauthenticated, match="the token state-dir ended"):
        kept.identify(first.encode())
    assert kept.identify(second.encode()) is not None


def test_a_server_that_was_off_for_long_begins_with_a_new_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    state(tmp_path, Calendar())
    first = path.read_text()
    os.utime(path, (START_S - 100 * DAY_S,) * 2)
    kept = state(tmp_path, Calendar(START_S))
    assert path.read_text() != first
    assert kept.identify(path.read_text().strip().encode()) is not None


def test_upkeep_tells_who_has_written_the_token_down(tmp_path: Path) -> None:
    async def story() -> None:
        server = TokenServer()
        clock = Calendar()
        kept, told = TokenUpkeep(server.store, server.stored, state(tmp_path, clock), clock=clock), []
        kept.renewed = lambda: told.append((tmp_path / "token").read_text())
        await kept.update()
        clock.ahead_s = 61 * DAY_S
        await kept.update()
        assert told == [(tmp_path / "token").read_text()]

    run_real(story())


def test_a_token_says_who_made_it_and_until_when(tmp_path: Path) -> None:
    made = (
        Token(metadata=ObjectMeta(name="x"), role="viewer", digest="d")
        .with_creator("ann")
        .with_end(Calendar(START_S).now())
    )
    assert (made.created_by, made.expires) == ("ann", as_datetime(Calendar(START_S).now()) + LASTS)
    assert msgspec.structs.replace(made, role="join").with_end(Calendar(START_S).now()).expires == made.expires
