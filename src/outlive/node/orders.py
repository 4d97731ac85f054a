"""What operators write into ``spec.fencing`` of a host about one fence: the order, and the word that it is off."""

from __future__ import annotations


def asked_for(text: str, uid: str) -> tuple[int, str, str] | None:
    """An order to fence, ``<epoch>[@<uid>]|<name>|<reason>``: that epoch, who, and why; ``None`` for anything else.

    ``uid``: of the host's Membership now. Epochs of another one, as of a machine that was replaced, are other epochs.
    """
    order, _, rest = text.partition("|")
    epoch, _, of = order.partition("@")
    if of not in ("", uid):
        return None
    name, _, reason = rest.partition("|")
    if not epoch.strip().isdecimal() or not name.strip() or not reason.strip():
        return None
    return int(epoch), name.strip(), reason.strip()


def assertion(text: str) -> tuple[str, str, str] | None:
    """``<fence>|<name>|<reason>``: somebody says that a host is off; ``None`` for anything else."""
    parts = text.split("|", 2)
    return (parts[0].strip(), parts[1].strip(), parts[2].strip()) if len(parts) == 3 else None
