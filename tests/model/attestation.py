"""An operator's word about a lost Membership of the first host, as the model gives it.

Somebody looks, reads what there is, and sends one write, which may take effect at any time later, or never. Who speaks
the truth has switched the host off; what a careless one says has to be refused where the host itself shows it wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.node.fencing import AttestView
from outlive.node.membership import FORMER_LIMIT
from tests.model.membership import Found, plain
from tests.model.rules import Rules
from tests.model.state import A_MEMBER, HOSTS, VM, Doc, Host, Outside, Vm, Write, replace
from tests.model.worlds import CROWD, World


def attests(
    rules: Rules, world: World, doc: Doc, vm: Vm, host: Host, outside: Outside, net: tuple[Write, ...]
) -> Iterator[Found]:
    """Somebody says, once, that what a lost Membership ran is off."""
    if "word" in outside.done or len(net) > 1 or (host.power and not world.careless):
        return
    entries = [one for one in vm.holders if one.hypervisor == HOSTS[0]]
    about = {one.member_uid: one.epoch for one in entries if world.attested in (one.member_uid, "all")}
    lost = {uid: epoch for uid, epoch in about.items() if world.attested != "all" or uid != doc.uid}
    running = (VM,) if host.domain is not None and lost and all(one.member_uid != doc.uid for one in entries) else ()
    view = AttestView(
        host=HOSTS[0],
        record=doc.record,
        uid=doc.uid,
        lost=lost,
        only="" if world.attested == "all" else world.attested,
        named=(*(one.member_uid for one in entries), *CROWD[: world.crowd]),
        missed=world.missed,
        running=running if world.figures else (),
        has_figures=world.figures,
        incarnation=str(outside.incarnation),
        token="word",
        name=world.operator_name,
        reason="unplugged",
    )
    outcome = rules.attempt("safety.attest", view)
    if outcome.refused is not None:
        return
    assert outcome.record is not None
    note = ""
    if not lost and not (world.missed and doc.record is None):
        note = "sense: a word is taken that nobody waits for"
    elif doc.uid in lost:
        note = "sense: a word is taken about a membership that is there, and settles nothing"
    elif len(outcome.record.former) > FORMER_LIMIT:
        note = "sense: a Membership keeps more lost ones than it has room for, and cannot be written"
    content = Doc(version=0, uid=doc.uid or "uid-1.word", record=plain(outcome.record))
    word = Write("word", "an operator", A_MEMBER, doc.version, content)
    said = f"Somebody says that what {world.attested if world.attested != 'all' else HOSTS[0]} ran is off"
    yield said, note, (replace(outside, done=(*outside.done, "word")), (*net, word))
