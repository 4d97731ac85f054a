from __future__ import annotations

import msgspec
import pytest

from outlive.base import BadInput
from outlive.failover import FailoverConfig, FailoverUpkeepSettings, RepackSettings, TopologyChoice
from outlive.roles import SECTIONS, role_settings


def load(**keys: object) -> FailoverConfig:
    return msgspec.convert(keys, FailoverConfig)


def test_defaults_are_those_of_the_reference_page():
    config = FailoverConfig().apply_defaults()
    assert config.flavor_failover_requirements == {"*": 2}
    assert (config.reconcile_interval_s, config.short_reconcile_interval_s) == (30.0, 0.1)
    assert (config.min_success_for_short_interval, config.max_failures_for_short_interval) == (1, 99)
    assert (config.max_vms_to_process, config.vm_selection_rotation_interval) == (30, 4)
    assert config.limit_one_new_reservation_per_hypervisor is True
    assert (config.trust_hypervisor_location, config.use_flavor_group_resources) == (False, False)
    assert config.revalidation_interval_s == 1800.0
    assert config.creator
    assert config.datasource_name == "nova-servers"
    assert config.scheduler_url == "http://localhost:8080/scheduler/nova/external"
    assert config.repack.max_changes_per_cycle == 40


def test_a_configuration_of_the_reference_loads_as_it_is():
    config = load(
        flavorFailoverRequirements={"*": 2},
        reconcileInterval="5m",
        shortReconcileInterval="1m",
        minSuccessForShortInterval=0,
        maxFailuresForShortInterval=99,
        maxVMsToProcess=50,
        vmSelectionRotationInterval=3,
        limitOneNewReservationPerHypervisor=False,
        trustHypervisorLocation=True,
        useFlavorGroupResources=False,
        revalidationInterval="30m",
        creator="me",
        datasourceName="nova-servers",
        schedulerURL="http://localhost:8080/scheduler/nova/external",
    ).apply_defaults()
    assert config.limit_one_new_reservation_per_hypervisor is False
    assert config.min_success_for_short_interval == 0
    assert (config.reconcile_interval_s, config.short_reconcile_interval_s, config.max_vms_to_process) == (300, 60, 50)


def test_an_explicit_empty_map_protects_nobody():
    assert load(flavorFailoverRequirements={}).apply_defaults().flavor_failover_requirements == {}
    assert load(flavorFailoverRequirements=None).apply_defaults().flavor_failover_requirements == {"*": 2}


def test_explicit_zeros_of_nullable_numbers_stay():
    config = load(minSuccessForShortInterval=0, maxFailuresForShortInterval=0, vmSelectionRotationInterval=0)
    filled = config.apply_defaults()
    assert filled.min_success_for_short_interval == 0
    assert filled.max_failures_for_short_interval == 0
    assert filled.vm_selection_rotation_interval == 0


def test_a_negative_number_of_vms_means_all_and_zero_means_absent():
    assert load(maxVMsToProcess=-1).apply_defaults().max_vms_to_process == -1
    assert load(maxVMsToProcess=0).apply_defaults().max_vms_to_process == 30


def test_a_zero_short_pause_is_a_wish():
    assert load(shortReconcileInterval="0s").apply_defaults().short_reconcile_interval_s == 0.0
    assert load(shortReconcileInterval="").apply_defaults().short_reconcile_interval_s == 0.1


def test_filling_twice_changes_nothing():
    once = load(shortReconcileInterval="0s", vmSelectionRotationInterval=0).apply_defaults()
    assert once.apply_defaults() == once


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"reconcileInterval": "5 minutes"}, "reconcileInterval"),
        ({"shortReconcileInterval": "x"}, "shortReconcileInterval"),
        ({"reconcileInterval": "-5m"}, "reconcileInterval is -5m"),
        ({"compat": "reference"}, "compat"),
        ({"reconcileintervall": "5m"}, "reconcileintervall"),
        ({"maxVMsToProcess": "many"}, "maxVMsToProcess"),
        ({"repack": {"max_changes_per_cycle": -1}}, "max_changes_per_cycle"),
    ],
)
def test_a_wrong_key_or_value_is_named(keys: dict[str, object], words: str):
    with pytest.raises(msgspec.ValidationError, match=words):
        load(**keys)


def test_what_only_we_have_stands_in_its_own_section():
    assert FailoverUpkeepSettings().brake_share == 0.20
    assert FailoverUpkeepSettings().brake_number == 50
    assert RepackSettings().max_changes_per_cycle == 40
    with pytest.raises(msgspec.ValidationError, match="databaseUrl"):
        msgspec.convert({"vmSource": "database"}, FailoverUpkeepSettings)
    with pytest.raises(msgspec.ValidationError, match="brakeShare"):
        msgspec.convert({"brakeShare": 2}, FailoverUpkeepSettings)


@pytest.mark.parametrize("key", ["gracePauses", "brakeNumber", "inlinePlanningVms"])
def test_a_number_out_of_range_is_named_as_in_the_file(key: str):
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: -1}, FailoverUpkeepSettings)


def test_the_dedicated_profile_sizes_slots_by_the_vm_alone():
    config = load(useFlavorGroupResources=True)
    assert not config.adapt_to_profile("dedicated").use_flavor_group_resources
    assert config.adapt_to_profile("general") == config


def test_a_data_source_is_found_by_its_name():
    upkeep = msgspec.convert(
        {"databaseUrl": "sqlite:///a", "dataSources": {"other": "sqlite:///b"}}, FailoverUpkeepSettings
    )
    assert upkeep.address_of("nova-servers") == "sqlite:///a"
    assert upkeep.address_of("other") == "sqlite:///b"
    with pytest.raises(BadInput, match="'third'") as raised:
        upkeep.address_of("third")
    assert "nova-servers, other" in (raised.value.remedy or "")
    listed = msgspec.convert({"dataSources": {"nova-servers": "sqlite:///c"}}, FailoverUpkeepSettings)
    assert listed.address_of("nova-servers") == "sqlite:///c"


def test_one_token_is_given_in_one_way():
    with pytest.raises(msgspec.ValidationError, match="schedulerTokenFile"):
        msgspec.convert({"schedulerToken": "t", "schedulerTokenFile": "f"}, FailoverUpkeepSettings)


def test_the_settings_of_a_role_are_those_of_its_profile():
    sections = {name: struct() for name, struct in SECTIONS.items()}
    sections["failover"] = load(useFlavorGroupResources=True)
    assert role_settings(sections).failover.use_flavor_group_resources
    sections["failoverUpkeep"] = FailoverUpkeepSettings(profile="dedicated")
    assert not role_settings(sections).failover.use_flavor_group_resources


def test_units_and_separation_are_read_and_wrong_names_are_told():
    keys = {"failureUnit": "rack", "keepApart": ["rack", "power", "rack"], "serverGroups": False}
    settings = msgspec.convert(keys, FailoverUpkeepSettings)
    assert settings.topology_choice == TopologyChoice(unit="rack", apart=("power", "rack"), server_groups=False)
    assert FailoverUpkeepSettings().topology_choice == TopologyChoice()
    for wrong, words in (
        ({"failureUnit": ""}, "failureUnit names ''"),
        ({"failureUnit": "rack/row"}, "failureUnit names 'rack/row'"),
        ({"keepApart": ["a" * 60]}, "keepApart names"),
        ({"keepApart": ["host"]}, "keepApart names host"),
    ):
        with pytest.raises(msgspec.ValidationError, match=words):
            msgspec.convert(wrong, FailoverUpkeepSettings)


def test_a_pattern_that_asks_for_more_slots_than_any_fleet_has_hosts_is_an_error():
    assert load(flavorFailoverRequirements={"*": 1000}).requirements == {"*": 1000}
    with pytest.raises(msgspec.ValidationError, match=r"'db_\*' needs 1001 slots; at most 1000"):
        load(flavorFailoverRequirements={"db_*": 1001})
