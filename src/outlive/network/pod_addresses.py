"""Addresses of VMs' pods on the default network: allocated once, copied to each target, free again when the VM is gone.

The book says whose each address is; who lives in the cache counts besides. An address enters the book before it is
written into an annotation, and leaves it only when the rows of its VM are deleted. Check and change happen under one
lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import Conflict, NotFound, OutliveError, Unavailable, Unknown, get_logger
from outlive.network.addresses import (
    COPY_ADDRESSES,
    RELEASE,
    RESERVE,
    CopyAddressesInput,
    CopyAddressesResult,
    ReleaseInput,
    ReserveInput,
    SourceAddressMissing,
    SubnetIndex,
    find_zone,
)
from outlive.network.addressing import parse_any
from outlive.network.annotation import AnnotationNotSet, decode_entry, parse_annotation, write_entry
from outlive.network.copies import Copy, PortAddresses, age_key, find_siblings, name_mac_owner
from outlive.network.gateway import MacInput, describe_mac
from outlive.network.names import DEFAULT_NETWORK, POD_NETWORKS
from outlive.network.pod_cache import PodCache
from outlive.network.pool import free_address, gateway_of
from outlive.resources import encode
from outlive.resources.foreign import KubernetesPod
from outlive.runtime import ClusterVerbs, DecisionLog, PatchOperation
from outlive.store import Store

TRIES: Final = 5
"""How often an annotation is written before others are said to change the pod each time."""
_POINTER: Final = "/metadata/annotations"
_log = get_logger("network")


class PodAddresses:
    """See the module."""

    def __init__(
        self, cache: PodCache, store: Store, verbs: ClusterVerbs, decisions: DecisionLog, *, allocate: bool
    ) -> None:
        self._cache = cache
        self._store = store
        self._verbs = verbs
        self._decisions = decisions
        self._allocates = allocate
        self._lock = asyncio.Lock()
        self._book: dict[str, str] = {}
        """Address without mask → whose it is (``network.lifecycle``, macOwner)."""
        self._of_owner: dict[str, set[str]] = {}
        self._hosts: dict[str, tuple[str, ...]] = {}
        """Hypervisors of this zone → subnets that addresses may be allocated from."""
        self._tracked = SubnetIndex({})

    def owner_of(self, address: str) -> str:
        """Whose an address of this zone is; empty: nobody's."""
        return self._book.get(address, "")

    async def adopt(self, hosts: Mapping[str, tuple[str, ...]], copies: Sequence[Copy]) -> None:
        """These are the zone's hypervisors now. Addresses that VMs brought along are reserved in new subnets first."""
        async with self._lock:
            known = {one for subnets in self._hosts.values() for one in subnets}
            fresh = tuple(one for subnets in hosts.values() for one in subnets if one not in known)
            if fresh and self._hosts:  # before the first ones nothing is allocated: see ``reserve``
                found = RESERVE.function(ReserveInput(subnets=fresh, copies=tuple(copies)))
                reserved = {one.partition("/")[0] for one in found.reserve}
                for copy in copies:
                    self._take(name_mac_owner(copy), [one for one in _default_addresses(copy) if one in reserved])
                if reserved:
                    _log.info("network.reserved", subnets=fresh, addresses=len(reserved))
            self._hosts, self._tracked = dict(hosts), SubnetIndex(hosts)

    def reserve(self, copy: Copy) -> None:
        """The copy's addresses of this zone are its VM's; somebody else's stay somebody else's."""
        own = [one for one in _default_addresses(copy) if find_zone([parse_any(one)], self._tracked).zone_contains]
        self._take(name_mac_owner(copy), own)

    def _take(self, owner: str, addresses: Iterable[str]) -> None:
        for one in addresses:
            if self._book.setdefault(one, owner) == owner:
                self._of_owner.setdefault(owner, set()).add(one)

    def _release(self, owner: str, addresses: Iterable[str]) -> list[str]:
        """Free those of the addresses that are the owner's; which these were."""
        own = self._of_owner.get(owner, set())
        freed = [one for one in addresses if one in own]
        for one in freed:
            del self._book[one]
            own.discard(one)
        if not own:
            self._of_owner.pop(owner, None)
        return freed

    def rival_of(self, copy: Copy) -> Copy | None:
        """The pod of somebody else that lives, is older, and has one of the copy's addresses."""
        own = name_mac_owner(copy)
        rivals = [
            other
            for address in _default_addresses(copy)
            for other in self._cache.pods_with(DEFAULT_NETWORK, address)
            if name_mac_owner(other) != own
        ]
        eldest = min(rivals, key=age_key, default=None)
        mine = [one for one in self._cache.copies_of(copy.vm) if not one.completed] if copy.vm is not None else []
        return (
            eldest if eldest is not None and age_key(eldest) < min(map(age_key, mine), default=age_key(copy)) else None
        )

    async def ensure(self, copy: Copy, copies: Sequence[Copy]) -> Copy:
        """The copy with its addresses, which are in its annotation. Without: they are somebody else's to write.

        ``SourceAddressMissing``, ``LimitExceeded`` (the subnet is full), ``Unavailable`` (it has none yet).
        """
        given = CopyAddressesInput(asked=copy.id, copies=tuple(copies), network=DEFAULT_NETWORK)
        try:
            found = self._decisions.use(COPY_ADDRESSES, given, subject=f"{copy.namespace}/{copy.name}")
        except SourceAddressMissing:
            if copy.id != next(one.id for one in copies if not one.completed):
                raise
            found = CopyAddressesResult(entry=None, patched=False)  # the eldest has nobody to wait for
        if found.entry is not None and not found.patched:
            self.reserve(copy)
            return copy
        siblings = find_siblings(copy, copies)
        entry = decode_entry(found.entry) if found.entry is not None else None
        made: PortAddresses | None = None
        if entry is None or (all(one.completed for one in siblings) and self._is_taken(copy, entry)):
            if not self._allocates:
                return copy
            entry = made = await self._allocate(copy)
        try:
            entry = await self._write(copy, entry)
        except OutliveError as error:
            if made is not None and not isinstance(error, Unknown):
                self._free(copy, made)
            raise
        if made is not None and set(made.addresses) != set(entry.addresses):
            self._free(copy, made)
        copy = set_entry(copy, entry)
        self.reserve(copy)
        return copy

    def _is_taken(self, copy: Copy, entry: PortAddresses) -> bool:
        """True if the addresses of a VM that was stopped are somebody else's now."""
        own = name_mac_owner(copy)
        for address in (str(parse_any(one)) for one in entry.addresses):
            others = self._cache.pods_with(DEFAULT_NETWORK, address)
            if self._book.get(address, own) != own or any(name_mac_owner(one) != own for one in others):
                return True
        return False

    async def _allocate(self, copy: Copy) -> PortAddresses:
        """The next free addresses of the copy's hypervisor, taken in the book."""
        async with self._lock:
            subnets = self._hosts.get(copy.hypervisor or "", ())
            if not subnets:
                raise Unavailable(
                    f"{copy.hypervisor} has no subnet on the default network yet",
                    remedy="see its annotation k8s.ovn.org/node-subnets",
                )
            taken = _UsedAddresses(self._book, self._cache)
            found: dict[int, str] = {}
            for cidr in subnets:
                gateway = gateway_of(cidr)
                management = str(parse_any(gateway) + 1) if gateway else ""
                address = free_address(cidr, taken, (management,) if management else (), gateway)
                found.setdefault(parse_any(address).version, address)
            addresses = tuple(found.values())
            self._take(name_mac_owner(copy), (one.partition("/")[0] for one in addresses))
        gateways = tuple(gateway for cidr in subnets if (gateway := gateway_of(cidr)))
        return PortAddresses(
            mac=describe_mac(MacInput(address=str(parse_any(addresses[0])))).mac,
            addresses=addresses,
            gateways=gateways[: len(addresses)],
            role="primary",
        )

    def _free(self, copy: Copy, entry: PortAddresses) -> None:
        self._release(name_mac_owner(copy), (str(parse_any(one)) for one in entry.addresses))

    async def _write(self, copy: Copy, entry: PortAddresses) -> PortAddresses:
        """Write the entry into the pod's annotation, through its status; what is there already counts more."""
        key = f"{copy.namespace}/{copy.name}"
        problem: OutliveError | None = None
        for _ in range(TRIES):
            pod = await self._store.get(KubernetesPod, key, fresh=True)
            if pod.metadata.uid != copy.id:
                raise NotFound(f"pod {key} is another one now")
            text = pod.metadata.annotations.get(POD_NETWORKS)
            try:
                existing = parse_annotation(text)
            except AnnotationNotSet:
                existing = {}
            if existing.get(DEFAULT_NETWORK) is not None:
                return decode_entry(existing[DEFAULT_NETWORK])
            value = encode(write_entry(existing, DEFAULT_NETWORK, entry)).decode()
            operations = [PatchOperation("add", f"{_POINTER}/{POD_NETWORKS.replace('/', '~1')}", value)]
            if not pod.metadata.annotations:
                operations.insert(0, PatchOperation("add", _POINTER, {}))
            version = pod.metadata.resource_version
            try:
                await self._verbs.patch(KubernetesPod, key, operations, version=version, subresource="status")
            except (Conflict, Unknown) as error:
                problem = error  # somebody changed the pod, or the answer was lost: read what it has now
                continue
            _log.info("network.annotated", pod=key, addresses=entry.addresses)
            return entry
        assert problem is not None
        raise problem

    async def release(self, copies: Sequence[Copy]) -> list[str]:
        """Free the addresses of a VM whose rows are deleted and that runs nowhere; which these were."""
        freed: list[str] = []
        async with self._lock:
            for copy in copies:
                addresses = _default_addresses(copy)
                others = [one for address in addresses for one in self._cache.pods_with(DEFAULT_NETWORK, address)]
                given = ReleaseInput(
                    asked=copy.id,
                    copies=tuple({one.id: one for one in (*copies, *others)}.values()),
                    tracked=dict(self._hosts),
                    released=all(self._book.get(one) != name_mac_owner(copy) for one in addresses),
                )
                if self._decisions.use(RELEASE, given, subject=f"{copy.namespace}/{copy.name}").release:
                    freed += self._release(name_mac_owner(copy), addresses)
        return freed

    async def keep_only(self, owner: str, copies: Sequence[Copy]) -> None:
        """Free addresses of a VM that none of its pods has: of one that is gone, or was started anew."""
        if owner in self._of_owner:
            used = {one for copy in copies for one in _default_addresses(copy)}
            async with self._lock:
                self._release(owner, self._of_owner.get(owner, set()) - used)

    async def clear(self) -> None:
        """Forget everything, before it is read anew."""
        async with self._lock:
            self._book.clear()
            self._of_owner.clear()
            self._hosts, self._tracked = {}, SubnetIndex({})


class _UsedAddresses(Collection[str]):
    """Addresses that somebody has."""

    def __init__(self, book: Mapping[str, str], cache: PodCache) -> None:
        self._book = book
        self._cache = cache

    def __contains__(self, address: object) -> bool:
        return address in self._book or bool(self._cache.pods_with(DEFAULT_NETWORK, str(address)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._book)

    def __len__(self) -> int:
        return len(self._book)


def set_entry(copy: Copy, entry: PortAddresses) -> Copy:
    """The copy with these addresses on the default network."""
    return msgspec.structs.replace(copy, networks={**copy.networks, DEFAULT_NETWORK: entry})


def _default_addresses(copy: Copy) -> list[str]:
    entry = copy.networks.get(DEFAULT_NETWORK)
    return [str(parse_any(one)) for one in entry.addresses] if entry is not None else []
