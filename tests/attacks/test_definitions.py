"""An operator's token reaches nothing of a host by a definition."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from outlive.resources import API_VERSION
from tests.support.api import GROUP
from tests.support.command import outlive, up

XML = (
    "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>web</name>"
    "<uuid>7b0a2c5e-0000-4000-8000-00000000d0d0</uuid><memory>1024</memory><vcpu>1</vcpu>{}</domain>"
)
ATTACKS = {
    "emulator": "<devices><emulator>/tmp/evil</emulator></devices>",
    "seclabel": "<seclabel type='none'/>",
    "commandline": "<qemu:commandline><qemu:arg value='-incoming'/></qemu:commandline>",
    "second": "<devices/><devices><disk type='file'><source file='/a'/><target dev='vda'/></disk></devices>",
    "shmem": "<devices><shmem name='other'/></devices>",
    "script": "<devices><interface type='ethernet'><script path='/tmp/evil'/></interface></devices>",
    "passwd": "<devices><graphics type='vnc' passwd='hunter2'/></devices>",
    "fwcfg": "<sysinfo type='fwcfg'><entry name='opt/a' file='/etc/shadow'/></sysinfo>",
    "tcp": "<devices><serial type='tcp'><source mode='connect' host='127.0.0.1' service='22'/></serial></devices>",
    "http": "<devices><disk type='network' device='cdrom'><source protocol='http'/><target dev='a'/></disk></devices>",
}


def test_no_definition_reaches_out_of_its_vm(tmp_path: Path) -> None:
    with up(tmp_path / "state", "--listen", "0.0.0.0:0") as server:
        made = outlive("token", "create", "--role", "operator", "--state-dir", tmp_path / "state", "-o", "json").out
        token, url = json.loads(made)["token"], f"https://127.0.0.1:{urlsplit(server.url).port}{GROUP}/virtualmachines"

        def create(name: str, devices: str) -> tuple[int, str]:
            vm = {
                "apiVersion": API_VERSION,
                "kind": "VirtualMachine",
                "metadata": {"name": name},
                "spec": {"definition": XML.format(devices)},
            }
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            request = urllib.request.Request(url, data=json.dumps(vm).encode(), headers=headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        for name, devices in ATTACKS.items():
            status, said = create(name, devices)
            assert (status, "hunter2" in said) == (422, False), (name, said)
        assert create("good", "<devices><graphics type='vnc'/></devices>")[0] == 201
        disk = "<disk type='network'><source protocol='rbd' name='vms/a'/><target dev='vda' bus='virtio'/></disk>"
        assert create("first", f"<devices>{disk}</devices>")[0] == 201
        status, said = create("second-of-its-disk", f"<devices>{disk}</devices>")
        assert (status, "one of VM first as well" in said) == (422, True)
