"""Messages about faults arrive at a real mail server, a real HTTPS server and a real program, from a real server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import spawned, up
from tests.support.loops import run_real
from tests.support.receivers import https_server, mail_server, receiver_tls

from outlive.base import BadInput, Instant, OutliveError, Unavailable
from outlive.drivers import ID_HEADER, SIGNATURE_HEADER, MailTarget, WebhookTarget, notifier_ports
from outlive.runtime import CommandSettings, MailSettings, NotificationMessage, NotifySettings, WebhookSettings
from outlive.runtime import test_message as made_test_message

SECRET = "hunter2-of-the-test"
BAR_S = 5.0
FAULT = "cluster-disarmed.default"
WAYS = {"hook", "mail", "pager"}


def secret_file(folder: Path, text: str = SECRET) -> str:
    file = folder / "secret"
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    return str(file)


def message(target: str = "oncall") -> NotificationMessage:
    return made_test_message("prod", target, Instant(1_700_000_000.0), "n")


def mail_settings(port: int, ca_file: Path, password_file: str) -> MailSettings:
    return MailSettings(
        server=f"127.0.0.1:{port}",
        ca_file=str(ca_file),
        username="outlive",
        password_file=password_file,
        sender="outlive@example.org",
        to=("oncall@example.org",),
    )


async def test_a_mail_arrives_by_starttls_with_a_password(tmp_path: Path) -> None:
    tls, authority = receiver_tls(tmp_path / "tls")
    async with mail_server(tls, SECRET) as box:
        target = MailTarget(mail_settings(box.port, authority, secret_file(tmp_path)))
        assert await target.send(message()) == f"taken by 127.0.0.1:{box.port} for oncall@example.org"
        assert box.logins == ["outlive"]
        assert "Subject: [prod] info: test oncall" in box.mails[0]
        assert f"Message-ID: <{message().id}@example.org>" in box.mails[0]
        assert SECRET not in box.mails[0]


@pytest.mark.parametrize("what", ["password", "authority", "recipient", "nobody"])
def test_a_mail_that_is_not_taken_says_why_without_the_secret(what: str, tmp_path: Path) -> None:
    async def story() -> str:
        tls, authority = receiver_tls(tmp_path / "tls")
        async with mail_server(tls, SECRET) as box:
            box.refuse = "550 no such user" if what == "recipient" else ""
            file = secret_file(tmp_path, "another-secret" if what == "password" else SECRET)
            believed = receiver_tls(tmp_path / "other")[1] if what == "authority" else authority
            with pytest.raises(OutliveError) as caught:
                await MailTarget(mail_settings(1 if what == "nobody" else box.port, believed, file)).send(message())
            assert box.mails == []
        return str(caught.value)

    said = run_real(story())
    words = {
        "password": "535 wrong password",
        "authority": "CERTIFICATE_VERIFY_FAILED",
        "recipient": "no such user",
        "nobody": "refused",
    }
    assert words[what] in said
    assert SECRET not in said
    assert "another-secret" not in said


async def test_a_webhook_is_signed_and_its_certificate_verified(tmp_path: Path) -> None:
    tls, authority = receiver_tls(tmp_path / "tls")
    async with https_server(tls) as hook:
        settings = WebhookSettings(url=hook.url, ca_file=str(authority), secret_file=secret_file(tmp_path))
        assert await WebhookTarget(settings).send(message()) == "200 OK: thank you"
        headers, body = hook.requests[0]
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers[SIGNATURE_HEADER] == f"sha256={expected}"
        assert headers[ID_HEADER] == message().id
        assert SECRET not in body.decode()
        assert json.loads(body)["notices"][0]["event"] == "test"
        with pytest.raises(Unavailable, match="its certificate is not believed"):
            await WebhookTarget(WebhookSettings(url=hook.url)).send(message())
        for status in (302, 404, 500):
            hook.status = status
            with pytest.raises(Unavailable, match=f"answered {status}"):
                await WebhookTarget(settings).send(message())
        assert len(hook.requests) == 4


def test_a_program_reads_a_message_of_any_length_and_its_end_is_the_answer(tmp_path: Path) -> None:
    async def send(*argv: str, timeout: str = "5s", times: int = 1) -> str:
        settings = NotifySettings(commands={"pager": CommandSettings(argv=argv)})
        one = message("pager")
        long = NotificationMessage(cluster="prod", target="pager", sent_at=one.sent_at, notices=one.notices * times)
        return await notifier_ports(settings).targets["pager"].send(long)

    reads = "import json,sys; print('read', len(json.load(sys.stdin)['notices']))"
    assert run_real(send("python3", "-c", reads, times=3000)) == "ended with 0: read 3000"
    assert run_real(send("true", times=3000)) == "ended with 0"
    with pytest.raises(Unavailable, match="ended with 3: not now"):
        run_real(send("sh", "-c", "echo not now >&2; exit 3"))
    with pytest.raises(Unavailable, match="not installed"):
        run_real(send("/nonexistent/pager"))


def test_a_secret_that_others_can_read_is_refused_at_the_start(tmp_path: Path) -> None:
    file = Path(secret_file(tmp_path))
    file.chmod(0o644)
    settings = NotifySettings(webhooks={"hook": WebhookSettings(url="https://h.example", secret_file=str(file))})
    with pytest.raises(BadInput) as caught:
        notifier_ports(settings)
    assert "notify: hook" in str(caught.value)


def test_a_server_tells_a_fault_within_five_seconds_by_every_way_and_answers_tests(tmp_path: Path) -> None:
    """The real server, with the real receivers: a cluster that is disarmed, and armed again."""

    async def story() -> None:
        tls, authority = receiver_tls(tmp_path / "tls")
        arrived = tmp_path / "arrived"
        async with https_server(tls) as hook, mail_server(tls, SECRET) as box:
            secret = secret_file(tmp_path)
            section: dict[str, Any] = {
                "cluster": "prod",
                "webhooks": {"hook": {"url": hook.url, "caFile": str(authority), "secretFile": secret}},
                "mails": {
                    "mail": {
                        "server": f"127.0.0.1:{box.port}",
                        "caFile": str(authority),
                        "username": "outlive",
                        "passwordFile": secret,
                        "sender": "outlive@example.org",
                        "to": ["oncall@example.org"],
                    }
                },
                "commands": {"pager": {"argv": ["sh", "-c", f"cat >>{arrived}; echo >>{arrived}"]}},
                "heartbeat": {"url": f"{hook.url}/beat", "every": "5s", "caFile": str(authority)},
            }
            state = tmp_path / "state"
            state.mkdir(mode=0o700)
            (state / "outlive.yaml").write_text(yaml.safe_dump({"notify": section}))

            def messages() -> list[Any]:
                return [json.loads(body) for headers, body in hook.requests if SIGNATURE_HEADER in headers]

            def told(event: str) -> set[str]:
                """By which ways that was told of the fault."""
                lines = arrived.read_text().splitlines(keepends=True) if arrived.exists() else []
                paged = [json.loads(line) for line in lines if line.strip() and line.endswith("\n")]
                notices = [("hook", one) for each in messages() for one in each["notices"]]
                notices += [("pager", one) for each in paged for one in each["notices"]]
                ways = {way for way, one in notices if (one["event"], one["fault"]) == (event, FAULT)}
                mails = [mail for mail in box.mails if "cluster-disarmed" in mail]
                ends = ["resolved: cluster-disarmed" in mail for mail in mails]
                return ways | ({"mail"} if (event == "resolved") in ends else set())

            using = asyncio.create_task(asyncio.to_thread(_use, state, told))
            stood_s = 0.0
            while not using.done():
                began_s = time.monotonic()
                await asyncio.wait([using], timeout=0.1)
                stood_s = max(stood_s, time.monotonic() - began_s - 0.1)
            await using
            assert len(hook.requests) > len(messages()), "no heartbeat came"
            assert ("test", "test") in [(one["event"], one["fault"]) for each in messages() for one in each["notices"]]
            sent, notice = next(
                (each["sentAt"], one) for each in messages() for one in each["notices"] if one["fault"] == FAULT
            )
            took = datetime.fromisoformat(sent) - datetime.fromisoformat(notice["since"])
            assert took.total_seconds() < BAR_S + stood_s, f"the machine stood still for {stood_s:.1f} s"
            assert next(json.loads(line)["cluster"] for line in arrived.read_text().splitlines()) == "prod"
            assert SECRET not in json.dumps(messages())

    run_real(story(), limit_s=240)


def _use(state: Path, told: Callable[[str], set[str]]) -> None:
    with up(state):
        options = ("--state-dir", state)
        tested = spawned("notify", "test", *options)
        assert tested.code == 0, tested.err
        assert "thank you" in tested.out
        assert "ended with 0" in tested.out
        unknown = spawned("notify", "test", "nobody", *options)
        assert (unknown.code, "no target 'nobody'" in unknown.err) == (4, True)
        assert spawned("disarm", "--cluster", "--mode", "ignore", "--yes", *options).code == 0
        server_log = state.parent / f"{state.name}.log"
        _until(lambda: told("opened") == WAYS)
        assert spawned("arm", "--cluster", *options).code == 0
        _until(lambda: told("resolved") == WAYS)
        _until(lambda: "cluster-disarmed" not in spawned("get", "notifications", *options).out)
        assert SECRET not in server_log.read_text()


def _until(claim: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
