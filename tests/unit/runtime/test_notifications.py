"""What a target is told of faults, and when: once, again after a while, and of the end; by table."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from outlive.base import Instant, as_datetime
from outlive.resources import Delivery, Fault, ObjectMeta, ObjectRef
from outlive.resources.reasons import FAULTS, FaultCode, Severity, severity_of
from outlive.runtime import (
    Duration,
    MailSettings,
    NotificationMessage,
    NotifySettings,
    TargetSettings,
    WebhookSettings,
    due_notices,
    record_delivery,
)
from outlive.runtime import test_message as made_test_message

T0 = 1_700_000_000.0
HOUR = 3600.0
FIRST = as_datetime(T0)


def fault(code: str = "host-dead", *, subject: str = "kvm-1", first: float = T0, **more: object) -> Fault:
    return Fault(
        metadata=ObjectMeta(name=f"{code}.{subject}"),
        code=code,
        subject=ObjectRef(kind="Hypervisor", name=subject),
        message=f"{subject} is so",
        remedy="do something",
        first_seen=as_datetime(first),
        last_seen=as_datetime(first),
        **more,
    )


def told(count: int = 1, at: float = T0, since: float = T0) -> Delivery:
    return Delivery(target="oncall", since=as_datetime(since), at=as_datetime(at), count=count)


def events(fault_: Fault | None, before: Delivery | None, *, now: float = T0, quiet: bool = False, **settings: object):
    name = fault_.name if fault_ is not None else "host-dead.kvm-1"
    found = due_notices(
        [fault_] if fault_ is not None else [],
        {name: {"oncall": before}} if before is not None else {},
        "oncall",
        TargetSettings(**settings),
        Instant(now),
        lambda _: quiet,
    )
    return [str(one.event) for one in found]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((fault(), None, {}), ["opened"]),
        ((fault(acknowledged=True), None, {}), []),
        ((fault(), None, {"quiet": True}), []),
        ((fault(code="foreign-domains"), None, {}), []),  # of severity info, which the target is not told of
        ((fault(code="foreign-domains"), None, {"severities": (Severity.INFO,)}), ["opened"]),
        ((fault(), told(), {"now": T0 + 4 * HOUR - 1}), []),
        ((fault(), told(), {"now": T0 + 4 * HOUR}), ["repeated"]),
        ((fault(), told(), {"now": T0 + 4 * HOUR, "repeat": Duration(0.0)}), []),
        ((fault(acknowledged=True), told(), {"now": T0 + 9 * HOUR}), []),
        ((fault(), told(), {"now": T0 + 9 * HOUR, "quiet": True}), []),
        ((fault(ended=True), told(), {}), ["resolved"]),
        ((fault(ended=True, acknowledged=True), told(), {"quiet": True}), ["resolved"]),
        ((fault(ended=True), told(), {"resolved": False}), []),
        ((fault(ended=True), None, {}), []),
        ((fault(first=T0 + HOUR), told(), {}), ["opened"]),  # it ended and came again before the end was told
        ((None, told(), {}), ["resolved"]),  # somebody deleted it
        ((fault(code="notify-failing", subject="oncall"), None, {}), []),  # nobody is told that he is not told
        ((fault(code="notify-failing", subject="other"), None, {}), ["opened"]),
        ((fault(code="from-the-future"), None, {}), ["opened"]),
    ],
)
def test_a_target_is_told(given, expected) -> None:
    one, before, options = given
    assert events(one, before, **options) == expected


def test_a_message_that_is_sent_again_has_the_same_ids_and_each_other_one_has_others() -> None:
    def ids(one: Fault, before: Delivery | None, target: str = "oncall", now: float = T0) -> tuple[str, ...]:
        records = {one.name: {target: before}} if before is not None else {}
        return tuple(each.id for each in due_notices([one], records, target, TargetSettings(), Instant(now)))

    opened = ids(fault(), None)
    assert ids(fault(), None, now=T0 + 60) == opened
    again = [ids(fault(), told(count=count), now=T0 + 4 * HOUR) for count in (1, 2)]
    others = [ids(fault(first=T0 + 1), None), ids(fault(), None, "other"), ids(fault(ended=True), told()), *again]
    assert len({opened, *others}) == 1 + len(others)


def test_what_is_recorded_counts_how_often_it_was_told() -> None:
    first = due_notices([fault()], {}, "oncall", TargetSettings(), Instant(T0))[0]
    one = record_delivery(None, first, "oncall", Instant(T0 + 2))
    assert one == Delivery(target="oncall", since=FIRST, at=as_datetime(T0 + 2), count=1)
    later = Instant(T0 + 5 * HOUR)
    again = due_notices([fault()], {first.fault: {"oncall": one}}, "oncall", TargetSettings(), later)[0]
    assert record_delivery(one, again, "oncall", later) == Delivery(
        target="oncall", since=FIRST, at=as_datetime(later), count=2
    )
    end = due_notices([fault(ended=True)], {first.fault: {"oncall": one}}, "oncall", TargetSettings(), later)[0]
    assert record_delivery(one, end, "oncall", later) is None


def test_the_worst_comes_first_and_names_the_message_in_one_line() -> None:
    found = due_notices(
        [fault("token-ends", subject="a"), fault("host-dead", subject="evil\r\nBcc: x@y.z")],
        {},
        "oncall",
        TargetSettings(),
        Instant(T0),
    )
    message = NotificationMessage(cluster="prod", target="oncall", sent_at=FIRST, notices=tuple(found))
    assert message.title == "[prod] critical: host-dead evil Bcc: x@y.z (and 1 more)"
    assert "what helps: do something" in message.text


def test_every_fault_has_a_severity_and_the_heavy_ones_are_not_for_later() -> None:
    assert {code.severity for code in FaultCode} == set(Severity)
    assert all(FAULTS[code].severity is not Severity.INFO for code in FaultCode if code.delta >= 25)
    assert FaultCode.VM_HELD.severity is Severity.CRITICAL
    assert severity_of("from-the-future") is Severity.CRITICAL


def test_a_test_message_says_that_nothing_is_wrong() -> None:
    message = made_test_message("prod", "oncall", Instant(T0), "n")
    assert "nothing is wrong" in message.text
    assert message.id != made_test_message("prod", "oncall", Instant(T0), "m").id


MAIL = {"server": "mail.example:587", "sender": "outlive@example.org", "to": ["oncall@example.org"]}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"webhooks": {"a": {"url": "http://hooks.example/x"}}}, "plain HTTP"),
        ({"webhooks": {"a": {"url": "hooks"}}}, "no address"),
        ({"webhooks": {"Name!": {"url": "https://h.example"}}}, "cannot be the name"),
        ({"webhooks": {"heartbeat": {"url": "https://h.example"}}}, "cannot be the name"),
        ({"webhooks": {"a": {"url": "https://h.example"}}, "commands": {"a": {"argv": ["x"]}}}, "two targets"),
        ({"webhooks": {"a": {"url": "https://h.example", "repeat": "3s"}}}, "less than a minute"),
        ({"webhooks": {"a": {"url": "https://h.example", "timeout": "2m"}}}, "at most 1m"),
        ({"webhooks": {"a": {"url": "https://h.example", "severities": []}}}, "names none"),
        ({"mails": {"a": {**MAIL, "to": ["x\r\nBcc: y@z.example"]}}}, "no mail address"),
        ({"mails": {"a": {**MAIL, "server": "mail.example"}}}, "HOST:PORT"),
        ({"mails": {"a": {**MAIL, "username": "u"}}}, "go together"),
        ({"mails": {"a": {**MAIL, "tls": "none"}}}, "plain HTTP"),
        ({"heartbeat": {"url": "https://h.example", "every": "1s"}}, "less than 5s"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(section: dict[str, object], words: str) -> None:
    from outlive.runtime import decode_unit

    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(section, NotifySettings, dec_hook=decode_unit)


def test_settings_have_sensible_defaults() -> None:
    one = WebhookSettings(url="https://h.example")
    assert (one.severities, one.repeat, one.resolved) == ((Severity.CRITICAL, Severity.WARNING), 4 * HOUR, True)
    assert MailSettings(server="127.0.0.1:25", sender="a@b.c", to=("d@e.f",), tls="none").tls == "none"
    assert datetime(2023, 11, 14, tzinfo=UTC).date() == FIRST.date()
