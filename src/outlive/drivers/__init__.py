"""The real world: databases, schedulers, processes. Blocking libraries run in threads; every call has a deadline."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.absent import NoHypervisor
    from outlive.drivers.age_passphrase import LOG_WORK_MOST, decrypt, encrypt
    from outlive.drivers.agent_http import AgentListener
    from outlive.drivers.audit_files import AUDIT_DIRECTORY, AuditFiles, read_lines
    from outlive.drivers.backup_files import AUTHORITY_FILES, CONFIGURATION, KEYS, KEY_FILES, MANIFEST, BackupDownload
    from outlive.drivers.backup_files import BackupFolder, BackupSource, KeyLock, KeyOpener, Manifest, check_backup
    from outlive.drivers.backup_files import check_recipient, is_store_copy, make_unpack, open_keys, parse_passphrase
    from outlive.drivers.backup_files import read_manifest, read_passphrase, receive_backup, write_backup
    from outlive.drivers.child import OVERTIME, SPARE_S, ChildComputer, search_plan, search_repacking, split_portions
    from outlive.drivers.child import start_timer
    from outlive.drivers.commands import COMMAND_RESULT, FAILED, TIMED_OUT, ProgramExit, run
    from outlive.drivers.credentials import CredentialFiles, forget_former, read_authorities, read_host_token
    from outlive.drivers.credentials import read_other_token
    from outlive.drivers.csv_inventory import HOST_FIELDS, VM_FIELDS, parse_column_map, read_hosts, read_vms
    from outlive.drivers.csv_numbers import SIGNS
    from outlive.drivers.duties import CommandDuty
    from outlive.drivers.files import STDIN, check_output, open_input, open_output, read_input, write_output
    from outlive.drivers.files import write_private
    from outlive.drivers.machine import HostSection, LinuxMachine
    from outlive.drivers.notify import ID_HEADER, SIGNATURE_HEADER, MailTarget, WebhookTarget, notifier_ports
    from outlive.drivers.openstack_inventory import read_openstack
    from outlive.drivers.scheduler_client import SchedulerClient
    from outlive.drivers.secrets import KEYS_LIMIT, KEY_FILE, VALUE_BYTES, ClusterKey, KeyCopy, SealingKey, Secrets
    from outlive.drivers.service_manager import is_machine_stopping
    from outlive.drivers.shared_keys import SharedKeys, StoreMove
    from outlive.drivers.store_move import check_at_rest, check_target, move_object, move_objects, read_objects
    from outlive.drivers.synced_tables import FLAVORS, RAM_MIB_MOST, SERVERS, VCPUS_MOST, SyncedTables, flavor_row
    from outlive.drivers.synced_tables import parse_rows, read_database, server_row
else:
    __getattr__ = load_exports(__name__)
