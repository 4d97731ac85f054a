"""What every store does with writes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.conformance.backends import claim
from tests.conformance.objects import change, election, flavor, slot, vm, with_meta, with_phase, with_project

from outlive.base import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable, limits
from outlive.resources import Flavor, ObjectRef, OwnerReference, Reservation, VirtualMachine
from outlive.store import Store


@claim
async def test_a_created_object_has_uid_version_generation_and_time(store: Store) -> None:
    made = await store.create(vm())
    meta = made.metadata
    assert meta.uid
    assert meta.resource_version
    assert meta.generation == 1
    assert meta.creation_timestamp is not None
    assert meta.creation_timestamp.microsecond == 0
    assert await store.get(VirtualMachine, "vm-1") == made


@claim
async def test_the_store_alone_says_uid_and_times(store: Store) -> None:
    moment = datetime(2001, 1, 1, tzinfo=UTC)
    made = await store.create(vm(uid="mine", generation=7, creation_timestamp=moment, deletion_timestamp=moment))
    assert made.metadata.uid != "mine"
    assert made.metadata.generation == 1
    assert made.metadata.creation_timestamp != moment
    assert made.metadata.deletion_timestamp is None


@claim
async def test_create_drops_the_status_half(store: Store) -> None:
    made = await store.create(vm(phase="ACTIVE"))
    assert made.status.phase == ""
    assert (await store.get(VirtualMachine, "vm-1")).status.phase == ""


@claim
async def test_create_keeps_the_whole_of_a_document_without_halves(store: Store) -> None:
    assert (await store.create(election())).record.holder == "a"


@claim
async def test_a_taken_name_is_refused(store: Store) -> None:
    first = await store.create(vm())
    with pytest.raises(AlreadyExists):
        await store.create(vm(project="other"))
    assert await store.get(VirtualMachine, "vm-1") == first


@claim
async def test_one_name_may_serve_two_kinds(store: Store) -> None:
    await store.create(vm("same"))
    await store.create(flavor("same"))
    assert (await store.get(Flavor, "same")).kind() == "Flavor"


@claim
async def test_names_are_generated_and_differ(store: Store) -> None:
    made = [await store.create(slot(name="", generate_name="failover-")) for _ in range(20)]
    names = {obj.name for obj in made}
    assert len(names) == 20
    assert all(name.startswith("failover-") and len(name) == len("failover-") + 5 for name in names)


@claim
async def test_a_name_wins_over_generate_name(store: Store) -> None:
    assert (await store.create(vm("given", generate_name="made-"))).name == "given"


@claim
async def test_an_object_without_a_name_is_refused(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.create(vm(""))


@claim
async def test_names_must_be_dns_names(store: Store) -> None:
    for name in ("UPPER", "under_score", "-dash", "dot.", "a/b", "a..b", "x" * 254, "é"):
        with pytest.raises(Invalid):
            await store.create(vm(name))
    await store.create(vm("6f9619ff-8b86-d011-b42d-00cf4fc964ff.example.org"))


@claim
async def test_malformed_labels_are_refused(store: Store) -> None:
    for labels in ({"a b": "x"}, {"a": "b c"}, {"a": "x" * 64}, {"/a": "x"}, {"UP/a": "x"}, {"a/b/c": "x"}, {"": "x"}):
        with pytest.raises(Invalid):
            await store.create(vm(labels=labels))
    made = await store.create(vm(labels={"topology.kubernetes.io/zone": "a", "plain_Key.x": ""}))
    with pytest.raises(Invalid):
        await store.replace(with_meta(made, labels={"a b": "x"}))


@claim
async def test_create_with_a_version_is_refused(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.create(vm(resource_version="1"))


@claim
async def test_another_api_version_is_refused(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.create(change(vm(), api_version="outlive.dev/v2"))


@claim
async def test_values_of_the_wrong_type_are_refused(store: Store) -> None:
    wrong = vm()
    with pytest.raises(Invalid):
        await store.create(change(wrong, spec=change(wrong.spec, power_state="sideways")))
    with pytest.raises(Invalid):
        await store.create(change(wrong, spec=change(wrong.spec, disk_gib="many")))


@claim
async def test_an_object_over_the_size_limit_is_refused_and_nothing_changes(store: Store) -> None:
    made = await store.create(vm())
    huge = change(made.spec, extra_specs={"k": "x" * limits.OBJECT_BYTES})
    with pytest.raises(Invalid):
        await store.replace(change(made, spec=huge))
    with pytest.raises(Invalid):
        await store.create(change(vm("vm-2"), spec=huge))
    assert await store.get(VirtualMachine, "vm-1") == made


@claim
async def test_a_large_object_within_the_limit_is_kept(store: Store) -> None:
    large = change(vm().spec, extra_specs={"k": "x" * (limits.OBJECT_BYTES - 4096)})
    made = await store.create(change(vm(), spec=large))
    assert await store.get(VirtualMachine, made.name) == made


@claim
async def test_what_the_caller_changes_afterwards_is_not_in_the_store(store: Store) -> None:
    labels = {"a": "1"}
    made = await store.create(vm(labels=labels))
    labels["a"] = "2"
    made.metadata.labels["a"] = "3"
    assert (await store.get(VirtualMachine, "vm-1")).metadata.labels == {"a": "1"}


@claim
async def test_replace_writes_the_spec_half_only(store: Store) -> None:
    made = await store.create(vm())
    made = await store.replace_status(with_phase(made, "ACTIVE"))
    after = await store.replace(with_phase(with_project(made, "q"), "ERROR"))
    assert after.spec.project == "q"
    assert after.status.phase == "ACTIVE"


@claim
async def test_replace_status_writes_the_status_half_only(store: Store) -> None:
    made = await store.create(vm(labels={"a": "1"}))
    after = await store.replace_status(with_phase(with_meta(with_project(made, "q"), labels={"a": "2"}), "ACTIVE"))
    assert after.spec.project == "p"
    assert after.metadata.labels == {"a": "1"}
    assert after.status.phase == "ACTIVE"


@claim
async def test_every_change_gives_a_new_version(store: Store) -> None:
    made = await store.create(vm())
    versions = [made.metadata.resource_version]
    for number in range(5):
        made = await store.replace(with_project(made, f"p{number}"))
        versions.append(made.metadata.resource_version)
        made = await store.replace_status(with_phase(made, f"s{number}"))
        versions.append(made.metadata.resource_version)
    assert len(set(versions)) == len(versions)


@claim
async def test_a_write_that_changes_nothing_keeps_the_version(store: Store) -> None:
    made = await store.create(vm())
    assert await store.replace(made) == made
    assert await store.replace_status(made) == made
    assert await store.patch_metadata(made.ref, labels={"absent": None}) == made


@claim
async def test_generation_counts_changes_of_the_spec_alone(store: Store) -> None:
    made = await store.create(vm())
    made = await store.replace(with_meta(made, labels={"a": "b"}))
    made = await store.replace_status(with_phase(made, "ACTIVE"))
    assert made.metadata.generation == 1
    made = await store.replace(with_project(made, "q"))
    assert made.metadata.generation == 2


@claim
async def test_generation_of_a_document_counts_changes_of_its_content(store: Store) -> None:
    made = await store.create(election())
    made = await store.replace(change(made, metadata=change(made.metadata, annotations={"a": "b"})))
    assert made.metadata.generation == 1
    made = await store.replace(change(made, record=change(made.record, renewals=1)))
    assert made.metadata.generation == 2


@claim
async def test_a_stale_version_conflicts_and_changes_nothing(store: Store) -> None:
    old = await store.create(vm())
    new = await store.replace(with_project(old, "q"))
    with pytest.raises(Conflict):
        await store.replace(with_project(old, "r"))
    with pytest.raises(Conflict):
        await store.replace_status(with_phase(old, "ERROR"))
    assert await store.get(VirtualMachine, "vm-1", fresh=True) == new


@claim
async def test_a_write_of_one_half_makes_the_version_of_the_other_stale(store: Store) -> None:
    old = await store.create(vm())
    await store.replace_status(with_phase(old, "ACTIVE"))
    with pytest.raises(Conflict):
        await store.replace(with_project(old, "q"))


@claim
async def test_a_swap_against_the_successor_conflicts(store: Store) -> None:
    old = await store.create(vm())
    await store.delete(old.ref)
    new = await store.create(vm())
    assert new.metadata.uid != old.metadata.uid
    with pytest.raises(Conflict):
        await store.replace(with_project(old, "q"))
    mixed = with_meta(with_project(old, "q"), resource_version=new.metadata.resource_version)
    with pytest.raises(Conflict):
        await store.replace(mixed)
    assert await store.get(VirtualMachine, "vm-1") == new


@claim
async def test_a_swap_needs_uid_and_version(store: Store) -> None:
    made = await store.create(vm())
    for missing in ("uid", "resource_version"):
        with pytest.raises(Invalid):
            await store.replace(with_meta(with_project(made, "q"), **{missing: ""}))
        with pytest.raises(Invalid):
            await store.replace_status(with_meta(with_phase(made, "q"), **{missing: ""}))


@claim
async def test_a_swap_of_what_is_gone_is_not_found(store: Store) -> None:
    made = await store.create(vm())
    await store.delete(made.ref)
    with pytest.raises(NotFound):
        await store.replace(with_project(made, "q"))
    with pytest.raises(NotFound):
        await store.replace_status(with_phase(made, "q"))


@claim
async def test_replace_cannot_touch_what_the_store_owns(store: Store) -> None:
    made = await store.create(vm())
    moment = datetime(2001, 1, 1, tzinfo=UTC)
    after = await store.replace(
        with_meta(with_project(made, "q"), generation=9, creation_timestamp=moment, deletion_timestamp=moment)
    )
    assert after.metadata.generation == 2
    assert after.metadata.creation_timestamp == made.metadata.creation_timestamp
    assert after.metadata.deletion_timestamp is None


@claim
async def test_a_kind_without_a_status_half_has_no_status_write(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.replace_status(await store.create(election()))
    with pytest.raises(Invalid):
        await store.replace_status(await store.create(flavor()))


@claim
async def test_delete_removes(store: Store) -> None:
    made = await store.create(vm())
    await store.delete(made.ref)
    with pytest.raises(NotFound):
        await store.get(VirtualMachine, "vm-1")
    with pytest.raises(NotFound):
        await store.delete(ObjectRef(kind="VirtualMachine", name="vm-1"))


@claim
async def test_delete_with_wrong_preconditions_conflicts(store: Store) -> None:
    made = await store.create(vm())
    after = await store.replace(with_project(made, "q"))
    plain = ObjectRef(kind="VirtualMachine", name="vm-1")
    with pytest.raises(Conflict):
        await store.delete(plain, version=made.metadata.resource_version)
    with pytest.raises(Conflict):
        await store.delete(plain, uid="another")
    with pytest.raises(Conflict):
        await store.delete(change(plain, uid="another"))
    await store.delete(plain, uid=after.metadata.uid, version=after.metadata.resource_version)


@claim
async def test_an_object_with_finalizers_is_marked_and_goes_with_the_last_of_them(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one", "outlive.dev/two")))
    await store.delete(made.ref)
    marked = await store.get(VirtualMachine, "vm-1")
    assert marked.metadata.deletion_timestamp is not None
    assert marked.metadata.resource_version != made.metadata.resource_version
    left = await store.replace(with_meta(marked, finalizers=("outlive.dev/two",)))
    assert (await store.get(VirtualMachine, "vm-1")) == left
    await store.replace(with_meta(left, finalizers=()))
    with pytest.raises(NotFound):
        await store.get(VirtualMachine, "vm-1")


@claim
async def test_deleting_what_is_marked_changes_nothing(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one",)))
    await store.delete(made.ref)
    marked = await store.get(VirtualMachine, "vm-1")
    await store.delete(made.ref)
    assert await store.get(VirtualMachine, "vm-1") == marked


@claim
async def test_what_is_being_deleted_gets_no_new_finalizers(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one",)))
    await store.delete(made.ref)
    marked = await store.get(VirtualMachine, "vm-1")
    with pytest.raises(Invalid):
        await store.replace(with_meta(marked, finalizers=("outlive.dev/one", "outlive.dev/two")))


@claim
async def test_the_name_of_what_is_being_deleted_is_taken(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one",)))
    await store.delete(made.ref)
    with pytest.raises(AlreadyExists):
        await store.create(vm())
    marked = await store.get(VirtualMachine, "vm-1")
    assert marked.metadata.uid == made.metadata.uid
    await store.replace(with_meta(marked, finalizers=()))
    again = await store.create(vm())
    assert again.metadata.uid != made.metadata.uid


@claim
async def test_a_version_is_of_both_halves_so_that_one_write_loses_to_another_of_the_other_half(store: Store) -> None:
    made = await store.create(vm())
    kept = await store.replace(with_meta(made, finalizers=("outlive.dev/one",)))
    with pytest.raises(Conflict):
        await store.replace_status(with_phase(made, "ACTIVE"))
    await store.delete(kept.ref)
    with pytest.raises(Conflict):  # the mark is a version of its own
        await store.replace_status(with_phase(kept, "ACTIVE"))
    marked = await store.get(VirtualMachine, "vm-1")
    await store.replace_status(with_phase(marked, "ACTIVE"))
    with pytest.raises(Conflict):  # so that nothing goes that has changed since it was looked at
        await store.replace(with_meta(marked, finalizers=()))
    now = await store.get(VirtualMachine, "vm-1")
    await store.replace(with_meta(now, finalizers=()))
    with pytest.raises(NotFound):
        await store.replace_status(with_phase(now, "SHUTOFF"))


@claim
async def test_what_is_being_deleted_can_still_be_written(store: Store) -> None:
    made = await store.create(vm(finalizers=("outlive.dev/one",)))
    await store.delete(made.ref)
    marked = await store.get(VirtualMachine, "vm-1")
    marked = await store.replace_status(with_phase(marked, "SHUTOFF"))
    assert marked.metadata.deletion_timestamp is not None


@claim
async def test_the_metadata_patch_sets_and_removes(store: Store) -> None:
    made = await store.create(vm(labels={"a": "1", "b": "2"}, annotations={"x": "1"}))
    after = await store.patch_metadata(made.ref, labels={"a": None, "c": "3"}, annotations={"x": "2"})
    assert after.metadata.labels == {"b": "2", "c": "3"}
    assert after.metadata.annotations == {"x": "2"}
    assert after.metadata.generation == 1
    assert await store.get(VirtualMachine, "vm-1") == after


@claim
async def test_the_metadata_patch_needs_no_version(store: Store) -> None:
    made = await store.create(vm())
    await store.replace(with_project(made, "q"))
    after = await store.patch_metadata(ObjectRef(kind="VirtualMachine", name="vm-1"), labels={"a": "1"})
    assert isinstance(after, VirtualMachine)
    assert after.spec.project == "q"


@claim
async def test_the_metadata_patch_is_refused_where_the_kind_says_so(store: Store) -> None:
    made = await store.create(slot())
    with pytest.raises(Forbidden):
        await store.patch_metadata(made.ref, labels={"a": "1"})
    assert await store.get(Reservation, "slot-1") == made


@claim
async def test_the_host_label_of_a_vm_is_not_patched(store: Store) -> None:
    made = await store.create(vm(labels={"outlive.dev/host": "h1"}))
    for value in ("h2", None):
        with pytest.raises(Forbidden):
            await store.patch_metadata(made.ref, labels={"outlive.dev/host": value})
    after = await store.replace(with_meta(made, labels={"outlive.dev/host": "h2"}))
    assert after.metadata.labels == {"outlive.dev/host": "h2"}


@claim
async def test_the_metadata_patch_of_nothing_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.patch_metadata(ObjectRef(kind="VirtualMachine", name="vm-1"), labels={"a": "1"})


@claim
async def test_malformed_patches_are_refused(store: Store) -> None:
    made = await store.create(vm())
    with pytest.raises(Invalid):
        await store.patch_metadata(made.ref, labels={"a": "b c"})
    assert await store.get(VirtualMachine, "vm-1") == made


@claim
async def test_an_unknown_kind_is_refused(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.delete(ObjectRef(kind="Nonsense", name="x"))
    with pytest.raises(Invalid):
        await store.patch_metadata(ObjectRef(kind="Nonsense", name="x"))


@claim
async def test_a_cluster_scoped_object_has_no_namespace(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.create(vm(namespace="somewhere"))


@claim
async def test_after_close_everything_is_unavailable(store: Store) -> None:
    made = await store.create(vm())
    await store.close()
    await store.close()
    for call in (
        store.get(VirtualMachine, "vm-1"),
        store.list(VirtualMachine),
        store.create(vm("vm-2")),
        store.replace(with_project(made, "q")),
        store.replace_status(with_phase(made, "q")),
        store.delete(made.ref),
        store.patch_metadata(made.ref, labels={"a": "b"}),
    ):
        with pytest.raises(Unavailable):
            await call


@claim
async def test_owner_references_of_others_survive_every_write(store: Store) -> None:
    owner = OwnerReference(api_version="v1", kind="Node", name="n1", uid="4f1c", controller=True)
    made = await store.create(vm(owner_references=(owner,)))
    assert made.metadata.owner_references == (owner,)
    made = await store.replace(with_project(made, "q"))
    made = await store.replace_status(with_phase(made, "ACTIVE"))
    await store.patch_metadata(made.ref, labels={"a": "b"})
    assert (await store.get(VirtualMachine, "vm-1")).metadata.owner_references == (owner,)
