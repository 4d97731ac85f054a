"""Managed networks whose flood lists a routing daemon keeps: FRR with EVPN on two hosts."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.processes import until
from tests.integration.test_links import CLUSTER_NET, ONE, TWO, guest, network, new_store, pings, settings
from tests.support.link_namespaces import inside, namespaces
from tests.support.loops import run_real
from tests.support.own_links import OwnLinks, following, switched

pytestmark = [pytest.mark.component("frr"), pytest.mark.slow]
BGP = """router bgp 65000
 bgp router-id 10.91.0.{own}
 no bgp default ipv4-unicast
 timers bgp 10 30
 neighbor 10.91.0.{peer} remote-as 65000
 neighbor 10.91.0.{peer} timers connect 1
 neighbor 10.91.0.{peer} advertisement-interval 0
 address-family l2vpn evpn
  neighbor 10.91.0.{peer} activate
  advertise-all-vni
 exit-address-family
"""
LIMIT_S = 60.0


@contextlib.contextmanager
def routing(space: str, own: int, peer: int) -> Iterator[None]:
    """FRR's zebra and bgpd in a namespace; they run as a user of their own, who writes into their folder."""
    folder = Path(tempfile.mkdtemp(prefix="outlive-frr-"))
    folder.chmod(0o777)
    (folder / "zebra.conf").write_text("")
    (folder / "bgpd.conf").write_text(BGP.format(own=own, peer=peer))
    running = []
    try:
        for name in ("zebra", "bgpd"):
            command = ["ip", "netns", "exec", space, f"/usr/lib/frr/{name}", "-f", str(folder / f"{name}.conf")]
            command += ["-i", str(folder / f"{name}.pid"), "-z", str(folder / "zserv"), "--vty_socket", str(folder)]
            command += ["-P", "0", "--log", f"file:{folder}/{name}.log"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            until((folder / "zserv").exists, "zebra listens", LIMIT_S)  # bgpd would wait 10 s before it tries again
        yield
    finally:
        for one in reversed(running):
            one.terminate()
        for one in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(5)
            one.kill()
            one.wait()
        shutil.rmtree(folder)


def flooded(space: str) -> list[str]:
    """Where the VXLAN of a host floods to."""
    entries = inside(space, "bridge", "fdb", "show", "dev", "vxlan70").splitlines()
    return [line for line in entries if line.startswith("00:00:00:00:00:00 dst ")]


def test_evpn_enters_where_a_network_floods_to_and_the_daemon_leaves_that_alone() -> None:
    async def story() -> None:
        store = await new_store(cluster=CLUSTER_NET)
        await store.create(network("blue", type="managed", vni=70))
        one = OwnLinks(ONE, "node1", store, settings(evpn=True))
        two = OwnLinks(TWO, "node2", store, settings(evpn=True))
        async with following(one, two):
            for host in (one, two):
                await host.start()
                await host.settle()
            assert flooded(ONE) == []
            with routing(ONE, 1, 2), routing(TWO, 2, 1):
                await asyncio.to_thread(until, lambda: flooded(ONE) and flooded(TWO), "both hosts flood", LIMIT_S, 0.1)
                (entry,) = flooded(ONE)
                assert entry.startswith("00:00:00:00:00:00 dst 10.91.0.2 ")
                assert (await one.settle(), await two.settle()) == (1, 1), "what FRR has entered stays"
                with namespaces(f"{ONE}a", f"{TWO}b"):
                    guest(ONE, "vmbr70", f"{ONE}a", "192.168.70.10/24")
                    guest(TWO, "vmbr70", f"{TWO}b", "192.168.70.11/24")
                    assert pings(f"{ONE}a", "192.168.70.11")
                assert len(flooded(ONE)) == 1

    with switched(ONE, TWO):
        run_real(story())
