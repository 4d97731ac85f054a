"""Which connection goes when there are too many, and when its peer takes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from outlive.api import STALLED_SECONDS, UNKNOWN_WRITE_SECONDS, WRITE_SECONDS, Connections, client_group


class Opened:
    """A connection as the pool sees it."""

    first_of = ""

    def __init__(self, client: str, *, idle: bool = True, since: float = 0.0, waited: float = 0.0) -> None:
        self.client_group = client
        self.idle = idle
        self.idle_since = since
        self.waited = waited
        self.ended = False

    def stalled_s(self, _now_s: float) -> float:
        return self.waited

    def abort(self) -> None:
        self.ended = True


def pool(limit: int) -> tuple[Connections, Counter[str]]:
    ended: Counter[str] = Counter()
    return Connections(limit, lambda why: ended.update([why])), ended


def added(connections: Connections, *opened: Opened, proven: bool = False) -> list[Opened]:
    for each in opened:
        connections.add(cast("Any", each))
        if proven:
            connections.prove(cast("Any", each))
    return list(opened)


def test_a_crowd_without_tokens_ends_only_its_own_connections() -> None:
    connections, ended = pool(16)
    hosts = added(connections, *(Opened("10.0.0.1", since=-1000.0) for _ in range(14)), proven=True)
    crowd = added(connections, *(Opened("192.0.2.9", since=float(n)) for n in range(100)))
    assert not any(each.ended for each in hosts)
    assert [each.ended for each in crowd] == [True] * 98 + [False] * 2
    assert ended == {"evicted": 98}


def test_a_crowd_that_works_goes_before_a_host_that_is_idle() -> None:
    connections, _ = pool(16)
    (host,) = added(connections, Opened("10.0.0.1", since=-1000.0), proven=True)
    crowd = added(connections, *(Opened("192.0.2.9", idle=False) for _ in range(20)))
    assert not host.ended
    assert sum(each.ended for each in crowd) == 5


def test_a_newcomer_goes_neither_for_a_larger_client_nor_at_once() -> None:
    connections, _ = pool(16)
    added(connections, *(Opened("192.0.2.9", since=float(n)) for n in range(15)))
    (host,) = added(connections, Opened("10.0.0.1", since=-5.0))
    added(connections, *(Opened("192.0.2.9", since=50.0) for _ in range(50)))
    assert not host.ended


def test_of_known_ones_the_client_with_the_most_gives_way_and_there_is_always_room_for_newcomers() -> None:
    connections, _ = pool(16)
    few = added(connections, *(Opened("10.0.0.1", since=-100.0) for _ in range(4)), proven=True)
    many = added(connections, *(Opened("10.0.0.2", since=float(n)) for n in range(20)), proven=True)
    assert not any(each.ended for each in few)
    assert [each.ended for each in many] == [True] * 10 + [False] * 10
    newcomers = added(connections, Opened("10.0.0.3"), Opened("10.0.0.4"))
    assert not any(each.ended for each in newcomers)


def test_where_all_known_ones_work_a_proven_one_stays_a_newcomer() -> None:
    connections, _ = pool(8)
    added(connections, *(Opened("10.0.0.1", idle=False) for _ in range(7)), proven=True)
    (last,) = added(connections, Opened("10.0.0.2"), proven=True)
    assert not connections.is_known(cast("Any", last))
    assert not last.ended


def test_a_connection_whose_peer_takes_nothing_is_ended_an_unknown_one_sooner() -> None:
    connections, ended = pool(16)
    times = (STALLED_SECONDS + 1, UNKNOWN_WRITE_SECONDS + 1, WRITE_SECONDS + 1)
    unknown = added(connections, *(Opened("a", waited=waited) for waited in times))
    known = added(connections, *(Opened("b", waited=waited) for waited in times), proven=True)
    counts = connections.sweep(0.0)
    assert [each.ended for each in unknown] == [False, True, True]
    assert [each.ended for each in known] == [False, False, True]
    assert (counts["stalled"], ended["write-timeout"]) == (3, 3)


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_what_counts_as_one_client(address: str, group: str) -> None:
    assert client_group(address) == group
