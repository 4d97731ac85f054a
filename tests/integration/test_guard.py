"""The guard as a real process: daemons that stop, VMs that do not die, and other clients on the socket.

The watchdog resets nothing and the cgroups are folders, but processes, signals, sockets and time are real. T is 0.6 s
and W is 0.8 s, so that whatever takes an operator half a minute takes a second here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.guards import T_S, W_S, Cgroups, Connection, Daemon, Guard, Watchdog, boot_time_s, closing, until

SLACK_S = 0.25
"""What a busy machine may delay a process by that goes before all others."""
FEEDS = 4
"""Of one beat, at most: one at once and one after each quarter of T."""


def shut_and_emptied(guard: Guard, vms: Cgroups) -> dict[str, Any]:
    until(lambda: vms.alive() == 0, "all VMs are dead")
    until(lambda: guard.in_phase("empty"), "the host is verified empty")
    return guard.status()


# --- what it is there for


def test_a_paused_daemon_loses_its_vms_and_the_empty_host_lives_on(
    guard: Guard, vms: Cgroups, watchdog: Watchdog, tmp_path: Path
) -> None:
    vms.start("a")
    vms.start("b")
    with closing(Daemon(guard)) as daemon:
        until(lambda: daemon.beats, "the daemon beats")
        guard.arm()
        armed_s = boot_time_s()
        until(lambda: watchdog.fed_after(armed_s + T_S + W_S, 2), "it is fed for longer than T and W")
        assert vms.alive() == 2
        assert not guard.status()["closures"]

        daemon.pause()
        status = shut_and_emptied(guard, vms)
        beat_s = status["beat"]["bootS"]
        closed_s = status["closures"][0]["at"]["bootS"]
        assert T_S <= closed_s - beat_s < T_S + SLACK_S
        assert status["closures"] == [{"at": status["closures"][0]["at"], "epoch": 1, "verified": True}]
        assert status["gate"] == "closed"
        assert guard.ask("create-begin", runId="r")["code"] == "gate-shut"
        assert (tmp_path / "stopped").exists()
        until(lambda: watchdog.fed_after(boot_time_s() - 0.1), "the empty host is fed")

        daemon.resume()
        until(lambda: guard.in_phase("watching"), "the gate is open again")
        until((tmp_path / "started").exists, "the service is started again")
        assert guard.status()["closed"] == 1
        assert guard.ask("create-begin", runId="r")["ok"]


def test_a_daemon_that_hogs_its_interpreter_cannot_beat_and_loses_its_vms(guard: Guard, vms: Cgroups) -> None:
    vms.start("a")
    with closing(Daemon(guard, "hog")) as daemon:
        until(lambda: daemon.beats, "the daemon's thread beats")
        guard.arm()
        count = len(daemon.beats)
        until(lambda: len(daemon.beats) > count + 10, "it goes on")
        assert guard.in_phase("watching")
        daemon.hog()
        status = shut_and_emptied(guard, vms)
        assert daemon.process.poll() is None
        assert status["beat"]["bootS"] <= daemon.hogging_s + SLACK_S


def test_what_cannot_be_killed_stops_the_feeding_for_good(guard: Guard, vms: Cgroups, watchdog: Watchdog) -> None:
    vms.start("a")
    (vms.root / "elsewhere").mkdir()
    (vms.root / "elsewhere" / "cgroup.procs").write_text("0\n")
    guard.arm()
    until(lambda: guard.in_phase("lost"), "the guard gives up")
    assert vms.alive() == 0
    assert len(watchdog.feeds) <= FEEDS
    (vms.root / "elsewhere" / "cgroup.procs").write_text("")
    guard.beat()
    given_up_s = boot_time_s()
    until(lambda: guard.status()["now"]["bootS"] > given_up_s + 0.3, "time passes")
    assert guard.status()["gate"] == "closed"
    assert len(watchdog.feeds) <= FEEDS
    assert "guard.gave-up" in guard.text()
    assert "1 processes" in guard.text()


def test_a_hypervisor_service_that_does_not_stop_costs_the_host(
    tmp_path: Path, options: list[str], vms: Cgroups
) -> None:
    vms.start("a")
    options[options.index("--stop-service") + 1] = "sleep 30"
    with closing(Guard(tmp_path, *options)) as guard:
        guard.arm()
        until(lambda: guard.in_phase("lost"), "the guard gives up")
        assert vms.alive() == 0
        assert "service stopping" in guard.text()


def test_a_killed_guard_feeds_no_more_and_leaves_the_watchdog_running(guard: Guard, watchdog: Watchdog) -> None:
    guard.arm()
    until(lambda: watchdog.feeds, "it is fed")
    guard.process.kill()
    guard.process.wait()
    time.sleep(0.2)  # what it fed last is read
    fed = len(watchdog.feeds)
    time.sleep(0.4)
    assert len(watchdog.feeds) == fed
    assert not watchdog.stopped


def test_the_kernel_is_asked_to_kill_where_it_can(guard: Guard, vms: Cgroups) -> None:
    (vms.root / "cgroup.kill").write_text("")
    (vms.root / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    vms.start("a")
    guard.arm()
    until(lambda: vms.alive() == 0, "all VMs are dead")
    until(lambda: vms.kernel_kills, "the kernel was asked")
    assert guard.in_phase("killing"), "the kernel still says that somebody is there"
    (vms.root / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    until(lambda: guard.in_phase("empty"), "the host is verified empty")


KERNEL_TREE = """
set -eu
mount -t cgroup2 none /mnt 2>/dev/null && root=/mnt/outlive-try-$$ && mkdir $root 2>/dev/null || exit 77
mkdir $root/vm $root/vm/libvirt $root/vm/libvirt/emulator
sleep 60 & echo $! > $root/vm/libvirt/cgroup.procs
echo threaded > $root/vm/libvirt/emulator/cgroup.type
"$1" -c '
import sys
from outlive.guard import cgroups
root = sys.argv[1]
print(cgroups.count_processes(root).left)
left = cgroups.kill(root).left
for _ in range(100_000):
    left = left and cgroups.count_processes(root).left
print(left)
' $root
rmdir $root/vm/libvirt/emulator $root/vm/libvirt $root/vm $root
umount /mnt
"""

KERNEL_READING = """
set -eu
mount -t cgroup2 none /mnt 2>/dev/null && root=/mnt/outlive-try-$$ && mkdir $root 2>/dev/null || exit 77
mkdir $root/machine.slice
"$1" -c '
import os, sys
from pathlib import Path
from outlive.guard import cgroups, requirements
from outlive.guard.states import GuardError
root = sys.argv[1] + "/machine.slice"
def tree(path):
    try:
        requirements.check_tree(path)
    except GuardError as error:
        return "refused"
    return "fine"
print("slice", tree(root), cgroups.count_processes(root).left)
pid = os.fork()
if not pid:
    os.execvp("sleep", ["sleep", "60"])
Path(root, "cgroup.procs").write_text(str(pid))
print("guest", cgroups.count_processes(root).left, pid in cgroups.list_processes(root))
os.kill(pid, 9)
os.waitpid(pid, 0)
os.rmdir(root)
print("slice-gone", tree(root), cgroups.count_processes(root).left)
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print("guard-inside", tree(sys.argv[1]))
Path("/mnt/cgroup.procs").write_text(str(os.getpid()))
' $root
rmdir $root
mount -t tmpfs none /mnt
mkdir -p /mnt/machine.slice
"$1" -c '
from outlive.guard import cgroups, requirements
from outlive.guard.states import GuardError
try:
    requirements.check_tree("/mnt/machine.slice")
except GuardError as error:
    print("other-tree", "cgroup v2" in str(error), cgroups.count_processes("/mnt/machine.slice").left)
lacking = [cgroups.count_processes(path).left for path in ("/mnt/none.slice", "/mnt/none/none.slice")]
print("other-tree-without", *lacking)
'
umount /mnt /mnt
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_tree_of_the_real_kernel_with_threaded_groups_is_seen_killed_and_seen_empty() -> None:
    command = ["unshare", "-m", "sh", "-c", KERNEL_TREE, "sh", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip("no cgroup v2 may be mounted here")
    assert (done.returncode, done.stdout.split()) == (0, ["1", "0"]), done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_only_what_was_read_of_the_kernels_own_tree_counts_as_empty() -> None:
    command = ["unshare", "-m", "sh", "-c", KERNEL_READING, "sh", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip("no cgroup v2 may be mounted here")
    assert done.stdout.splitlines() == [
        "slice fine 0",
        "guest 1 True",
        "slice-gone fine 0",
        "guard-inside refused",
        "other-tree True 1",
        "other-tree-without 1 1",
    ], done.stderr


# --- the gate


def test_a_vm_that_was_being_created_when_the_gate_shut_is_killed_when_it_appears(
    guard: Guard, vms: Cgroups, watchdog: Watchdog
) -> None:
    guard.beat()
    assert guard.ask("create-begin", runId="slow")["ok"]
    guard.arm(watchdog_s=5.0)
    until(lambda: guard.in_phase("killing"), "the gate is shut")
    late = vms.start("late")
    until(lambda: late.poll() is not None, "the late VM is dead")
    assert guard.in_phase("killing"), "the create may still bring another one"
    assert len(watchdog.feeds) <= FEEDS
    guard.ask("create-end", runId="slow")
    until(lambda: guard.in_phase("empty"), "the host is verified empty")


def test_no_create_is_granted_once_the_gate_was_seen_shut(guard: Guard, vms: Cgroups) -> None:
    beat_s = guard.arm()
    answers: list[tuple[float, bool]] = []
    for n in range(100_000):
        asked_s = boot_time_s()
        answers.append((asked_s, guard.ask("create-begin", runId="r")["ok"]))
        guard.ask("create-end", runId="r")
        if n > 50 and not any(ok for _, ok in answers[-20:]):
            break
    granted = [ok for _, ok in answers]
    assert granted == sorted(granted, reverse=True)
    assert all(asked_s < beat_s + T_S for asked_s, ok in answers if ok)
    until(lambda: guard.in_phase("empty"), "the host is verified empty")


def test_a_vm_that_appears_on_an_emptied_host_is_killed(guard: Guard, vms: Cgroups, watchdog: Watchdog) -> None:
    guard.arm()
    until(lambda: guard.in_phase("empty"), "the host is verified empty")
    by_hand = vms.start("by-hand")
    until(lambda: by_hand.poll() is not None, "it is dead")
    until(lambda: guard.in_phase("empty"), "the host is verified empty again")
    assert "guard.not-empty-any-more" in guard.text()
    until(lambda: watchdog.fed_after(boot_time_s() - 0.05), "it is fed again")


def test_repeating_an_old_beat_keeps_nobody_alive(guard: Guard, vms: Cgroups) -> None:
    vms.start("a")
    beat_s = guard.arm()
    until(lambda: guard.beat(beat_s) and guard.beat(beat_s - 1) and vms.alive() == 0, "all VMs are dead")
    status = guard.status()
    assert status["beat"]["bootS"] == beat_s
    assert status["closed"] == 1
    assert guard.beat(boot_time_s() + 5)["code"] == "future-beat"


# --- arming and stopping


def test_off_until_it_is_armed(guard: Guard, vms: Cgroups, watchdog: Watchdog) -> None:
    vms.start("a")
    assert guard.ask("arm", timeoutS=T_S, watchdogS=W_S)["code"] == "no-beat"
    beat_s = boot_time_s()
    guard.beat(beat_s)
    until(lambda: boot_time_s() > beat_s + T_S + 0.1, "T passes")
    assert guard.ask("create-begin", runId="r")["ok"]
    assert vms.alive() == 1
    assert not watchdog.feeds
    assert not guard.status()["armed"]


def test_disarming_stops_the_watchdog_and_then_the_guard_may_stop(
    guard: Guard, watchdog: Watchdog, tmp_path: Path
) -> None:
    guard.arm(timeout_s=30.0)
    guard.process.send_signal(signal.SIGTERM)
    until(lambda: "guard.stop-refused" in guard.text(), "it says that it is armed")
    refused_s = boot_time_s()
    until(lambda: watchdog.fed_after(refused_s), "it goes on feeding")
    assert guard.ask("disarm")["ok"]
    until(lambda: watchdog.stopped, "the watchdog is stopped")
    guard.process.send_signal(signal.SIGTERM)
    assert guard.process.wait(10) == 0
    assert not guard.socket.exists()


def test_a_guard_that_is_started_anew_is_armed_by_a_daemon_that_knows_what_is_published(
    guard: Guard, watchdog: Watchdog
) -> None:
    guard.arm(timeout_s=30.0)
    guard.process.kill()
    guard.process.wait()
    guard.again()
    until(lambda: guard.beat()["ok"], "renewals are acknowledged again")
    assert not guard.status()["armed"]
    guard.arm(timeout_s=30.0)
    again_s = boot_time_s()
    until(lambda: watchdog.fed_after(again_s), "it feeds")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"--watchdog": "{tmp}/none"}, "no such watchdog"),
        ({"--watchdog": "/dev/null"}, "is it a watchdog?"),
        ({"--cgroup": "{tmp}/no/such"}, "no such group"),
    ],
)
def test_arming_is_refused_where_the_promise_could_not_be_kept(
    tmp_path: Path, options: list[str], changed: dict[str, str], why: str
) -> None:
    for name, value in changed.items():
        options[options.index(name) + 1] = value.format(tmp=tmp_path)
    with closing(Guard(tmp_path, *options)) as guard:
        guard.beat()
        assert why in guard.ask("arm", timeoutS=T_S, watchdogS=W_S)["message"]
        assert not guard.status()["armed"]


def test_files_and_folders_take_the_place_of_the_kernels_only_in_a_rehearsal(tmp_path: Path, vms: Cgroups) -> None:
    (tmp_path / "file").write_bytes(b"")
    places = ["--watchdog", str(tmp_path / "file"), "--cgroup", str(vms.root)]
    with closing(Guard(tmp_path, *places)) as guard:
        guard.beat()
        assert "cgroup v2" in guard.ask("arm", timeoutS=T_S, watchdogS=W_S)["message"]
    with closing(Guard(tmp_path, *places, "--rehearsal")) as guard:
        guard.arm()
        assert not guard.status()["hardware"]
        until(lambda: (tmp_path / "file").read_bytes().startswith(b"\0\0"), "the file is fed")


def test_a_guard_that_is_below_the_group_that_it_would_kill_refuses_to_be_armed(guard: Guard, vms: Cgroups) -> None:
    (vms.root / "cgroup.procs").write_text(f"{guard.process.pid}\n")
    guard.beat()
    assert "the guard itself" in guard.ask("arm", timeoutS=T_S, watchdogS=W_S)["message"]


# --- the socket


def test_the_socket_is_for_its_user_only_and_one_guard_holds_it(
    guard: Guard, options: list[str], tmp_path: Path
) -> None:
    assert stat.S_IMODE(guard.socket.stat().st_mode) == 0o600
    command = [sys.executable, "-m", "outlive", "guard", "--socket", str(guard.socket), *options]
    second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode == 5
    assert "a guard runs there already" in second.stderr
    assert guard.status()["ok"]


def test_the_path_of_a_dead_guard_is_taken_over(guard: Guard) -> None:
    guard.process.kill()
    guard.process.wait()
    assert guard.socket.exists()
    guard.again()
    assert guard.status()["ok"]


def test_garbage_silence_and_crowds_do_not_disturb_it(guard: Guard, watchdog: Watchdog) -> None:
    guard.arm(timeout_s=30.0)
    armed_s = boot_time_s()
    seeded = random.Random(1)
    crowd = [guard.connected() for _ in range(40)]
    for connection in crowd[24:30]:
        connection.sendall(seeded.randbytes(3000).replace(b"\n", b" ") + b"\n")
        assert json.loads(connection.recv(4096))["code"] == "malformed"
    endless, broken = b"x" * 200_000, b'{"do":' * 500 + b"\n" + b'{"do":"beat","sent":NaN,"epoch":1}\n' * 30
    for connection, sent in zip(crowd[30:], (endless, broken, b'{"do":"status"}'), strict=False):
        with contextlib.suppress(ConnectionError):  # it may hang up in the middle
            connection.sendall(sent)
    deaf = crowd[33]
    deaf.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while True:
            deaf.send(b'{"do":"status"}\n' * 500)
    guard.forget()
    assert guard.status()["armed"], "a new client is heard beside others"
    until(lambda: watchdog.fed_after(armed_s, 5), "it is fed")
    read = sorted(Counter(watchdog.feeds).items())  # several at once, where the reader was late
    assert all(after_s - before_s < W_S * feeds for (before_s, _), (after_s, feeds) in pairwise(read))
    assert guard.status()["phase"] == "watching"
    assert guard.process.poll() is None


def test_status_is_shown_on_the_command_line(guard: Guard) -> None:
    guard.arm(timeout_s=30.0)
    command = [sys.executable, "-m", "outlive", "guard", "--status", "--socket", str(guard.socket)]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=20).stdout)
    assert (shown["phase"], shown["gate"], shown["timeoutS"]) == ("watching", "open", 30.0)


def test_a_log_that_nobody_reads_does_not_stop_the_guard(
    tmp_path: Path, options: list[str], watchdog: Watchdog
) -> None:
    reader, writer = os.pipe()
    socket_path = tmp_path / "quiet.sock"
    command = [sys.executable, "-m", "outlive", "guard", "--socket", str(socket_path), *options]
    process = subprocess.Popen(command, stderr=writer)
    quiet = Connection(socket_path)
    try:
        until(socket_path.exists, "it listens")
        quiet.arm(timeout_s=30.0)
        for _ in range(2000):
            assert quiet.beat(boot_time_s() + 9)["code"] == "future-beat"
        full_s = boot_time_s()
        until(lambda: watchdog.fed_after(full_s), "it goes on feeding")
    finally:
        quiet.hang_up()
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)
