"""``outlive tls rotate`` with a real server and a real daemon: the authority is replaced, and nobody joins again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command import outlive, spawned, up
from tests.support.hosts import LIMIT_S, Host, within


def asked(state: Path, *arguments: str) -> Any:
    answer = outlive(*arguments, "--state-dir", state, "-o", "json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def seq(state: Path) -> int:
    return int(asked(state, "get", "memberships", "kvm-1")["record"]["seq"])


def test_an_authority_is_replaced_without_losing_the_host(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with up(state, "--listen", "0.0.0.0:0") as server:
        pinned = json.loads((state / "server.json").read_text())["fingerprint"]
        made = asked(state, "token", "create", "--join", "--host", "kvm-1")
        host = Host(tmp_path / "host", "kvm-1", server.url, tmp_path / "host/node.token")
        del host.sections["server"]
        host.configure()
        joined = spawned(
            "node", "join", server.url, "--token", made["token"], "--fingerprint", pinned, "--config", host.config
        )
        assert joined.code == 0, joined.err
        try:
            said = asked(state, "tls", "rotate")
            assert (said["authority"], said["without"]) == (pinned, ["kvm-1"])
            refused = outlive("tls", "rotate", "--finish", "--yes", "--state-dir", state)
            assert (refused.code, "kvm-1 does not believe the new authority yet" in refused.line) == (1, True)
            assert "--leave kvm-1" in refused.line
            host.start().ready()
            assert within(LIMIT_S, lambda: asked(state, "tls", "rotate")["without"] == []), host.logged()[-2000:]
            assert asked(state, "tls", "rotate", "--finish", "--yes")["authority"] == said["next"]
            assert json.loads((state / "server.json").read_text())["fingerprint"] == said["next"]
            before = seq(state)
            assert within(LIMIT_S, lambda: seq(state) > before + 2)
            assert host.stop() == 0
            host.start().ready()
            before = seq(state)
            assert within(LIMIT_S, lambda: seq(state) > before + 2)
            old = outlive(
                "get", "ohv", "--server", server.url, "--token", f"@{state / 'token'}", "--fingerprint", pinned
            )
            assert (old.code, "was expected" in old.line) == (7, True)
            both = f"{pinned},{said['next']}"
            new = outlive("get", "ohv", "--server", server.url, "--token", f"@{state / 'token'}", "--fingerprint", both)
            assert new.code == 0, new.err
        finally:
            host.close()
