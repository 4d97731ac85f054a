"""What is asked of an ensemble: requests, operations of transactions, and a transaction that is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as zk
from kazoo.security import ACL

Begin = Callable[[Any], Any]
"""Sends one request by the ``LoopKazoo`` that is given to it."""
Operation = Callable[[Any], None]
"""Adds one operation to a transaction."""


class TransactionRefused(Exception):
    """One operation of a transaction was refused, and so nothing was written."""

    def __init__(self, index: int, error: zk.KazooException) -> None:
        super().__init__(f"operation {index}: {type(error).__name__}")
        self.index = index
        self.error = error


def request_get(path: str) -> Begin:
    """Read data and state."""
    return lambda kazoo: kazoo.get_async(path)


def request_children(path: str) -> Begin:
    """Read the names of the children."""
    return lambda kazoo: kazoo.get_children_async(path)


def request_exists(path: str, watch: Callable[[Any], None] | None) -> Begin:
    """Read the state; ``watch`` is called once when it changes."""
    return lambda kazoo: kazoo.exists_async(path, watch=watch)


def request_delete(path: str) -> Begin:
    """Delete, whatever version it has."""
    return lambda kazoo: kazoo.delete_async(path)


def request_acl(path: str, acl: Sequence[ACL]) -> Begin:
    """Replace the ACL."""
    return lambda kazoo: kazoo.set_acls_async(path, list(acl))


def request_get_acl(path: str) -> Begin:
    """Read the ACL."""
    return lambda kazoo: kazoo.get_acls_async(path)


def request_transaction(operations: Sequence[Operation]) -> Begin:
    """Carry out all of these or none."""
    return lambda kazoo: kazoo.send(operations)


def request_check(kazoo: Any) -> None:
    """Have a transaction go through the quorum that only checks whether the chroot is there."""
    kazoo.send([check("/", -1)])


def create(path: str, data: bytes, acl: Sequence[ACL] | None = None, *, numbered: bool = False) -> Operation:
    """Make a znode; ``numbered``: the server adds ten digits to its name."""
    return lambda transaction: transaction.create(path, data, acl=list(acl) if acl else None, sequence=numbered)


def check(path: str, version: int) -> Operation:
    """Have the transaction refused unless the znode has this version."""
    return lambda transaction: transaction.check(path, version)


def replace_data(path: str, data: bytes, version: int = -1) -> Operation:
    """Replace the data of a znode that has this version."""
    return lambda transaction: transaction.set_data(path, data, version=version)


def remove(path: str, version: int = -1) -> Operation:
    """Delete a znode that has this version."""
    return lambda transaction: transaction.delete(path, version=version)


def raise_if_refused(answers: Any) -> None:
    """``TransactionRefused`` with the operation that was refused, if one was."""
    for index, answer in enumerate(answers):
        if isinstance(answer, zk.KazooException) and not isinstance(
            answer, zk.RolledBackError | zk.RuntimeInconsistency
        ):
            raise TransactionRefused(index, answer)
