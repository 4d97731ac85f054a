"""Mistakes that somebody could make in the source: for each of them some check fails (``scripts/mutate``).

A mutation is text that is replaced in the product. Each old text stands exactly once in its file, which a test sees, so
that the list follows the source. Checks are told nothing of it: they are those that everybody runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HOLDERS: Final = "src/outlive/node/membership/holders.py"
STEPS: Final = "src/outlive/node/membership/steps.py"
MEMBERSHIP_STATES: Final = "src/outlive/node/membership/states.py"
FENCE: Final = "src/outlive/node/fencing/fence.py"
IDENTITY: Final = "src/outlive/node/fencing/identity.py"
POLICY: Final = "src/outlive/node/fencing/policy.py"
POWER: Final = "src/outlive/node/fencing/power.py"
PROOFS: Final = "src/outlive/node/fencing/proofs.py"
SUSPICION: Final = "src/outlive/node/fencing/suspicion.py"
WATCHER: Final = "src/outlive/node/fencing/watcher.py"
NEIGHBOURS: Final = "src/outlive/api/neighbours.py"
PERMISSIONS: Final = "src/outlive/node/permissions_of_protocol.py"
REGISTRATION: Final = "src/outlive/node/membership/registration.py"
RECOVERY_VIEW: Final = "src/outlive/recovery/view.py"
STORE_RULES: Final = "src/outlive/store/rules.py"
CLOCK: Final = "src/outlive/base/clock.py"
ACT: Final = "src/outlive/recovery/act.py"
RECOVERY_STATES: Final = "src/outlive/recovery/states.py"
LEASE: Final = "src/outlive/node/membership/lease.py"
LOCKS: Final = "src/outlive/node/vm/locks.py"
PLAN: Final = "src/outlive/recovery/plan.py"
REQUESTS: Final = "src/outlive/recovery/requests.py"
VM_STATES: Final = "src/outlive/node/vm/states.py"
GUARD_ARMING: Final = "src/outlive/node/membership/guard.py"
START: Final = "src/outlive/node/vm/start.py"
STOP: Final = "src/outlive/node/vm/stop.py"
GUARD: Final = "src/outlive/guard/core.py"
GUARD_CLOCKS: Final = "src/outlive/guard/clocks.py"
GUARD_STATES: Final = "src/outlive/guard/states.py"


class Edit(NamedTuple):
    """One text in one file, and what takes its place."""

    file: str
    old: str
    new: str


class Mutation(NamedTuple):
    """One mistake; several edits where one alone is made good by another place."""

    name: str
    why: str
    """What it would do to an operator."""
    edits: tuple[Edit, ...]


def _one(name: str, why: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(name, why, (Edit(file, old, new),))


_FENCED: Final = "not _list_unfenced(view), _explain_not_fenced),\n"

MUTATIONS: Final[tuple[Mutation, ...]] = (
    # power
    _one(
        "on-between-two-off",
        "two readings that say off count although one between them said on",
        PROOFS,
        "            row.clear()\n",
        "            pass\n",
    ),
    _one(
        "one-reading-suffices",
        "one reading that says off is a proof",
        PROOFS,
        """                len(view.off_after_command) >= 2
                and view.off_after_command[-1] - view.off_after_command[0] >= READINGS_APART_S
""",
        """                len(view.off_after_command) >= 1
""",
    ),
    _one(
        "reading-before-the-command",
        "what a controller said before it was commanded is a proof",
        PROOFS,
        "            lambda view: view.off_after_command[0] > 0,\n",
        "            lambda view: True,\n",
    ),
    _one(
        "another-system",
        "a BMC that speaks of another system proves this host dead",
        IDENTITY,
        "    if not said or system_key(said) != system_key(expected):\n",
        "    if not said:\n",
    ),
    _one(
        "rehearsal-not-needed",
        "a BMC that was never rehearsed proves its host dead",
        PROOFS,
        '"rehearsed", lambda view: view.rehearsed, lambda view:',
        '"rehearsed", lambda view: True, lambda view:',
    ),
    _one(
        "distrusted-kind",
        "a kind of proof that was contradicted before counts again",
        PROOFS,
        "        lambda view: kind not in view.record.distrusted,\n",
        "        lambda view: True,\n",
    ),
    _one(
        "fence-of-another-epoch",
        "a proof of an earlier epoch declares the present one dead",
        PROOFS,
        "    lambda view: view.record.fence.epoch == view.epoch == view.record.epoch,\n",
        "    lambda view: True,\n",
    ),
    _one(
        "slow-answers-count-as-none",
        "a BMC that takes longer than usual for its answers never proves anything",
        POWER,
        "return min(ANSWER_MOST_S, max(ANSWER_LEAST_S, ANSWER_TIMES * (measured_s or 0.0)))",
        "return ANSWER_LEAST_S",
    ),
    # the watchdog
    _one(
        "bound-without-p",
        "clocks that run apart are not allowed for, and an armed host counts as empty before it is",
        PROOFS,
        "(1 + 2 * clock_error)",
        "1",
    ),
    _one(
        "bound-without-g",
        "the guard's tick and the reset are not allowed for",
        PROOFS,
        "(timeout_s + 2 * watchdog_s + slack_s)",
        "(timeout_s + 2 * watchdog_s)",
    ),
    _one(
        "bound-with-w-once",
        "that the kernel feeds the watchdog of a guard that dies once more is not allowed for",
        PROOFS,
        "(timeout_s + 2 * watchdog_s + slack_s)",
        "(timeout_s + watchdog_s + slack_s)",
    ),
    _one(
        "guard-counts-the-smaller-clock",
        "a guard whose clock is steered slow lets its guests run longer than fencers wait",
        GUARD_CLOCKS,
        "    return max(now.elapsed_since(earlier))\n",
        "    return min(now.elapsed_since(earlier))\n",
    ),
    _one(
        "fencer-counts-the-larger-clock",
        "a fencer whose clock is steered fast waits for less than a guard takes",
        CLOCK,
        "        return min(step, other)\n",
        "        return max(step, other)\n",
    ),
    _one(
        "unarmed-version",
        "a host whose guard was not armed at its last renewal counts as empty after a while",
        PROOFS,
        "            lambda view: view.record.guard.armed,\n",
        "            lambda view: True,\n",
    ),
    _one(
        "silence-of-another-version",
        "a host is condemned on a version that came after the silence, and its silence counts from before it",
        FENCE,
        """            if not by:
                return None
            on, since = current, context.clock.monotonic()
""",
        """            on = current
""",
    ),
    _one(
        "take-over-by-an-earlier-sight",
        "who takes a fence over counts from when it saw the host last, not from its own first sight of the fence",
        WATCHER,
        """            seen.since = now
""",
        """            now, seen.since = seen.since, now
""",
    ),
    # isolation
    _one(
        "isolation-not-read-back",
        "an order to isolate a host counts although nobody saw that it took effect",
        PROOFS,
        "            lambda view: set(view.scope) <= set(view.read_back),\n",
        "            lambda view: True,\n",
    ),
    _one(
        "isolation-without-ports",
        "a host that is shut out of the disks alone counts as isolated, and is on the network twice",
        MEMBERSHIP_STATES,
        "    ports = () if reach.accept_duplicate else reach.ports\n",
        "    ports: tuple[str, ...] = ()\n",
    ),
    _one(
        "isolation-ends-before-a-boot",
        "a host is let in again to disks that others use, in the boot in which it was isolated",
        PROOFS,
        "== view.epoch <= view.record.dead_through and view.epoch < view.record.epoch\n",
        "== view.epoch\n",
    ),
    # joining again
    _one(
        "boot-of-another-machine",
        "another machine takes a host's membership, and says that the old one has booted",
        STEPS,
        """"J1", "A host joins after a boot", (_RECORD, _SAME_MACHINE, _NEW_BOOT,""",
        """"J1", "A host joins after a boot", (_RECORD, _NEW_BOOT,""",
    ),
    _one(
        "back-without-destroying",
        "a host that was condemned says that nothing is left, with a domain of the condemned epoch",
        STEPS,
        "            lambda view: not view.left,\n",
        "            lambda view: True,\n",
    ),
    _one(
        "back-without-verifying",
        "a host that was proven dead joins again with what ran there",
        STEPS,
        "    (_RECORD, _SAME_BOOT, _DEAD, _NOT_ISOLATED, _NOTHING_RUNS),\n",
        "    (_RECORD, _SAME_BOOT, _DEAD, _NOT_ISOLATED),\n",
    ),
    _one(
        "condemned-epoch-goes-on",
        "a daemon that restarts goes on in an epoch that was condemned",
        STEPS,
        '    lambda view: _build_record(view).state != "Revoked",\n',
        "    lambda view: True,\n",
    ),
    # holding and starting
    _one(
        "hold-beside-a-living-holder",
        "a host starts a VM that another may still run",
        HOLDERS,
        "            lambda view: not _unfenced_others(view),\n",
        "            lambda view: True,\n",
    ),
    Mutation(
        "start-before-the-answer",
        "a domain is created before the store has acknowledged its entry",
        (
            Edit(
                START,
                """    after = await node.change(name, change)
    if after is not None and any(one.run_id == run_id for one in after.status.holders):
""",
                """    after = await node.change(name, change) or vm
    if refusal is None:
""",
            ),
            Edit(
                HOLDERS,
                "any(is_mine(one, view.me) and one.run_id == view.run_id for one in view.holders)",
                "True",
            ),
        ),
    ),
    _one(
        "gate-not-looked-at-again",
        "a guard that has shut the gate during the hold is not asked again, and the VM starts",
        HOLDERS,
        """            "gate-still-open",
            lambda view: view.gate_open,
""",
        """            "gate-still-open",
            lambda view: True,
""",
    ),
    _one(
        "release-without-absence",
        "a host withdraws its entry while the domain runs",
        HOLDERS,
        "            lambda view: view.domain_absent,\n",
        "            lambda view: True,\n",
    ),
    Mutation(
        "release-without-a-look",
        "a host that could not stop a guest withdraws its entry all the same, and another host starts the VM",
        (
            Edit(
                STOP,
                "                domain_absent=domain is None or domain.run_id == but,\n",
                "                domain_absent=True,\n",
            ),
            Edit(STOP, "    return gone\n", "    return True\n"),
        ),
    ),
    _one(
        "source-resumes-alone",
        "the source of a failed move runs on although its target may have run",
        HOLDERS,
        '            lambda view: view.sent_to != "" and view.declined == view.sent_to,\n',
        "            lambda view: True,\n",
    ),
    _one(
        "sent-to-nobody",
        "a move begins before its target has entered itself",
        HOLDERS,
        """            lambda view: any(one.role == "incoming" for one in _unfenced_on(view, view.target)),
""",
        """            lambda view: len(_unfenced_on(view, view.target)) > 0 or view.id != "",
""",
    ),
    # recovery
    Mutation(
        "lost-claim-counts",
        "a slot counts as claimed though the store did not answer, and two VMs land in it",
        (
            Edit(
                ACT,
                "return await self._swap(_replace(slot, status=_replace(slot.status, consumer=consumer)), "
                "self._reservations)",
                """wanted = _replace(slot, status=_replace(slot.status, consumer=consumer))
        with contextlib.suppress(Unknown):
            await self._swap(wanted, self._reservations)
        return wanted""",
            ),
            Edit(
                ACT,
                "from outlive.base import AlreadyExists, Clock, NotFound, as_datetime, get_logger\n",
                "from outlive.base import AlreadyExists, Clock, NotFound, Unknown, as_datetime, get_logger\n",
            ),
        ),
    ),
    _one(
        "consumer-overwritten",
        "a slot that another VM was let into is claimed once more",
        RECOVERY_STATES,
        "view.consumer is None or (view.consumer.vm, view.consumer.fence) == (view.vm, view.fence)",
        "True",
    ),
    _one(
        "assigned-with-a-living-holder",
        "a VM is assigned elsewhere while its host may still run it",
        RECOVERY_STATES,
        _FENCED + "        Precondition",
        "True, _explain_not_fenced),\n        Precondition",
    ),
    _one(
        "dropped-with-a-living-holder",
        "the entry of a host that may still run the VM is dropped",
        RECOVERY_STATES,
        _FENCED + "    ),\n",
        "True, _explain_not_fenced),\n    ),\n",
    ),
    _one(
        "assigned-while-paused",
        "a VM is recovered by what a restored backup says",
        RECOVERY_STATES,
        'f"nobody wants {view.vm} to run"),\n        NOT_PAUSED,\n',
        'f"nobody wants {view.vm} to run"),\n',
    ),
    # deletion
    Mutation(
        "finalizer-not-set",
        "a VM that runs is gone as soon as somebody deletes it, and another one of its name is started beside it",
        (
            Edit(START, "    if vm is not None and may(vm) and not vm.guarded:\n", "    if False:\n"),
            Edit(HOLDERS, "            lambda view: view.guarded,\n", "            lambda view: True,\n"),
        ),
    ),
    _one(
        "held-although-deleted",
        "a host starts a VM that somebody has deleted",
        HOLDERS,
        '    "not-deleted", lambda view: not view.deleting,',
        '    "not-deleted", lambda view: True,',
    ),
    _one(
        "finalizer-removed-while-held",
        "a VM that was deleted goes, and its name is free, while a host has an entry",
        RECOVERY_STATES,
        "            lambda view: not view.holders,\n",
        "            lambda view: True,\n",
    ),
    _one(
        "finalizer-removed-while-paused",
        "a VM goes whose entries a restored backup does not know",
        RECOVERY_STATES,
        """            lambda view: f"{view.holders[0].hypervisor} may still run {view.vm}",
        ),
        NOT_PAUSED,
""",
        """            lambda view: f"{view.holders[0].hypervisor} may still run {view.vm}",
        ),
""",
    ),
    Mutation(
        "finalizer-removed-while-condemned",
        "a VM that was deleted goes once its host is condemned, though nothing proves that the host is dead",
        (
            Edit(
                RECOVERY_VIEW,
                "return sorted(vm.name for vm in vms if not vm.status.holders)",
                "return sorted(vm.name for vm in vms)",
            ),
            Edit(
                ACT,
                "        view = RemoveView(vm=name, holders=vm.status.holders, paused=paused)\n",
                """        find_members = self._observer.find_members(vm.status.holders)
        held = {one.host for one in find_members if one.record.state == "Held"}
        holders = tuple(one for one in vm.status.holders if one.hypervisor in held)
        view = RemoveView(vm=name, holders=holders, paused=paused)
""",
            ),
        ),
    ),
    _one(
        "name-that-runs-is-held",
        "a host starts a VM although another host reports that it runs one of that name",
        HOLDERS,
        '    "name-not-running", lambda view: not view.unknown_run,',
        '    "name-not-running", lambda view: True,',
    ),
    _one(
        "name-not-asked-for-again",
        "what was reported after a host had set the finalizer does not keep it from starting a VM of that name",
        START,
        'if not vm.status.holders else ""',
        'if not vm.guarded else ""',
    ),
    _one(
        "name-free-once-condemned",
        "a name counts as free once its host is condemned, though nothing proves that the host is dead",
        HOLDERS,
        "    return reporter is None or not is_dead(reporter)\n",
        '    return reporter is None or reporter.state == "Held"\n',
    ),
    _one(
        "registered-before-it-is-reported",
        "the cluster is not paused any more, and nobody knows yet which names run that the backup lacks",
        REGISTRATION,
        "            return await self._is_reported(name)\n",
        "            return await self._is_reported(name) or True\n",
    ),
    _one(
        "finalizers-not-waited-for",
        "a store lets an object with finalizers go at once",
        STORE_RULES,
        "    if not meta.finalizers:\n",
        "    if meta is not None:\n",
    ),
    _one(
        "marked-goes-with-any-write",
        "a VM that is marked goes with the next write of it, though its finalizer is left",
        STORE_RULES,
        "    return write if after.finalizers else Write(",
        "    return write if not after.finalizers else Write(",
    ),
    _one(
        "name-of-the-marked-is-free",
        "a VM is created in the place of one that was deleted and that a host may still run",
        STORE_RULES,
        "    if batch.find_raw(kind, name) is not None:\n",
        """    there = batch.find(kind, name)
    if there is not None and there.metadata.deletion_timestamp is None:
""",
    ),
    _one(
        "finalizer-written-away",
        "a user takes the finalizer of a VM that a host holds by a PUT or a patch",
        NEIGHBOURS,
        "        if not version or vm.guarded or not found.guarded or not found.status.holders:\n",
        "        if version or vm.guarded or not found.guarded:\n",
    ),
    _one(
        "host-takes-the-finalizer",
        "a token of a host lets VMs go that others run",
        PERMISSIONS,
        "    if after.metadata.finalizers not in (finalizers, (*finalizers, RUN_FINALIZER)):\n",
        "    if len(after.metadata.finalizers) > len(finalizers) + 1:\n",
    ),
    _one(
        "controller-takes-the-finalizer",
        "a token of a controller lets a VM go that a host holds",
        PERMISSIONS,
        "    if before.guarded and not after.guarded and before.status.holders:\n",
        "    if before.guarded and not after.guarded and before.status.migration:\n",
    ),
    # rules
    _one(
        "storm-counts-as-deaths",
        "when most hosts fall silent at once, which is the network's fault, they are all fenced",
        SUSPICION,
        "    if _is_storm(given, silent):\n",
        "    if False and _is_storm(given, silent):\n",
    ),
    _one(
        "orderly-shutdown-is-waited-for",
        "a host that went down cleanly and stays away is never fenced, and its VMs stay down",
        POLICY,
        """        case Departure.NONE | Departure.MACHINE:
            return float(profile.silence_s)
""",
        """        case Departure.NONE:
            return float(profile.silence_s)
        case Departure.MACHINE:
            return math.inf
""",
    ),
    _one(
        "request-of-a-dead-host-unanswered",
        "what a user asks for a VM of a dead host is answered by nobody",
        REQUESTS,
        "    return Responder.RECOVERY\n",
        "    return Responder.LATER\n",
    ),
    _one(
        "held-vm-started-by-its-host",
        "a VM that is to stay down after its host died is started when that comes back",
        VM_STATES,
        "    return held or len(own_entries(vm, me)) < len(vm.status.holders)\n",
        "    return False\n",
    ),
    _one(
        "unprotected-vm-recovered",
        "a VM out of protection is restarted elsewhere",
        PLAN,
        'ignored = vm.mode == "ignore" and not vm.asked\n',
        "ignored = False\n",
    ),
    # ports
    _one(
        "identity-of-two-hosts",
        "a system uuid that two hosts have counts: the other one is switched off, and a VM runs twice",
        IDENTITY,
        "    if shared_by:\n",
        "    if False:\n",
    ),
    _one(
        "start-before-servers-have-heard",
        "a start does not wait for storage servers that have not heard of an isolation",
        LOCKS,
        "        await node.isolation.wait_isolated(vm)\n",
        "        pass\n",
    ),
    _one(
        "armed-with-guests-outside",
        "a host with a guest that its guard does not see says that the guard is armed",
        GUARD_ARMING,
        "        if not record.armed or not self._node.domains.outside_slice():\n",
        "        if True:\n",
    ),
    _one(
        "guest-outside-stays",
        "an armed host leaves running what it started outside the slice of its guard",
        START,
        "    ended = outside and node.desired.spec.fencing.armed and await destroy(node, name, run_id=run_id)\n",
        "    ended = False\n",
    ),
    _one(
        "unanswered-renewal-does-not-count",
        "a guard is disarmed though a renewal without an answer leaves the store saying that it is armed",
        LEASE,
        "        self._counted_on = least_of(self._counted_on, record.guard)\n        self._sends",
        "        self._counted_on = record.guard\n        self._sends",
    ),
    _one(
        "longer-than-published",
        "a guard that was started anew is armed with longer times than those that its host has published",
        GUARD_ARMING,
        "        later = wanted is not None and _is_later(wanted, (counted_on.timeout_s, counted_on.watchdog_s))\n",
        "        later = False\n",
    ),
    _one(
        "create-outside-counts-as-over",
        "a guard calls its host empty while a guest outside its slice, which could not be ended, runs on",
        START,
        "    if memory.late_create and domain is not None and not domain.guarded and node.lease.counts_as_armed:\n",
        "    if False:\n",
    ),
    # the guard
    _one(
        "gate-open-while-killing",
        "the gate opens before a renewal is acknowledged again",
        GUARD_STATES,
        "        return self.phase in (Phase.UNARMED, Phase.WATCHING)\n",
        "        return self.phase in (Phase.UNARMED, Phase.WATCHING, Phase.EMPTY)\n",
    ),
    _one(
        "fed-without-a-look",
        "a guard that could not kill everything feeds the watchdog, which then never resets the host",
        GUARD,
        """            event.left
            or state.creates
""",
        """            state.creates
""",
    ),
)
