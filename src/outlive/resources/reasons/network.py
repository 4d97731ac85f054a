"""Why a port or a network is not as it is meant to be."""

from __future__ import annotations

import enum
from typing import Final

from outlive.resources.reasons.model import Table, Template


class NetworkReason(enum.StrEnum):
    """Why a port is not programmed, or a target cannot take it over yet; and what an inspection of OVN finds."""

    PROGRAMMED = "programmed"
    NOT_BOUND = "not-bound"
    FLOWS_BEHIND = "flows-behind"
    NO_CHASSIS = "no-chassis"
    NETWORK_MISSING = "network-missing"
    NETWORK_INVALID = "network-invalid"
    TYPE_CHANGED = "type-changed"
    SUBNETS_OVERLAP = "subnets-overlap"
    HOST_NOT_REACHED = "host-not-reached"
    HOST_LACKS_NETWORK = "host-lacks-network"
    VM_MISSING = "vm-missing"
    NO_HOST = "no-host-yet"
    NO_INTERFACE = "no-interface"
    NO_INTERFACE_ID = "no-interface-id"
    INTERFACE_TWICE = "interface-twice"
    MAC_INVALID = "mac-invalid"
    MAC_DIFFERS = "mac-differs"
    MAC_TWICE = "mac-twice"
    ADDRESS_TWICE = "address-twice"
    NETWORK_CHANGED = "network-changed"
    MODE_CHANGED = "mode-changed"
    ADDRESSES_CHANGED = "addresses-changed"
    NO_ADDRESS = "no-address"
    FOREIGN_ROW = "foreign-row"
    OVN_REFUSED = "ovn-refused"
    # what an inspection finds
    ROW_MISSING = "row-missing"
    ROW_WRONG = "row-wrong"
    ROW_SURPLUS = "row-surplus"
    NO_PORT = "no-port"
    MAC_CONFLICT = "mac-conflict"
    ROUTE_CONFLICT = "route-conflict"
    ADDRESS_CONFLICT = "address-conflict"
    BOUND_ELSEWHERE = "bound-elsewhere"
    PORT_DOWN = "port-down"
    CHASSIS_SILENT = "chassis-silent"
    NORTHD_BEHIND = "northd-behind"
    MAC_LEARNED = "mac-learned"


_CONTROLLER: Final = "the controller corrects it within seconds; if it stays, see whether one runs and its log"

TABLE: Final[Table] = {
    NetworkReason.PROGRAMMED: Template("OVN has its rows"),
    NetworkReason.NOT_BOUND: Template("{host} has not bound port {port} yet", "see ovn-controller on {host}"),
    NetworkReason.FLOWS_BEHIND: Template("{host} has not installed the flows yet", "see ovn-controller on {host}"),
    NetworkReason.NO_CHASSIS: Template(
        "{host} is no chassis of OVN",
        "start ovn-controller there, or name its chassis: spec.chassis of Hypervisor {host}",
    ),
    NetworkReason.NETWORK_MISSING: Template(
        "there is no VirtualNetwork {network}", "create it, or name another one in spec.network"
    ),
    NetworkReason.NETWORK_INVALID: Template("network {network}: {problem}", "{remedy}"),
    NetworkReason.TYPE_CHANGED: Template(
        "network {network} was made as {type}, and does not become {wanted} while it has ports",
        "write type {type} again, or delete its ports first",
    ),
    NetworkReason.SUBNETS_OVERLAP: Template(
        "network {network}: its subnets overlap those of {other}, and routed networks share one router",
        "give one of them other subnets",
    ),
    NetworkReason.HOST_NOT_REACHED: Template(
        "network {network} does not reach {host}", "move the VM, or label the host: spec.hostLabels of {network}"
    ),
    NetworkReason.HOST_LACKS_NETWORK: Template(
        "{host} has not made network {network}: {why}",
        "see section links of its node.yaml and its fault networks-not-made, or move the VM",
    ),
    NetworkReason.VM_MISSING: Template("there is no VM {vm}", "create it, or delete the port"),
    NetworkReason.NO_HOST: Template("VM {vm} is on no host yet"),
    NetworkReason.NO_INTERFACE: Template(
        "the definition of {vm} has no interface {number}", "add it there, or delete the port"
    ),
    NetworkReason.NO_INTERFACE_ID: Template(
        "interface {number} in the definition of {vm} has no id in Open vSwitch",
        "write <virtualport type='openvswitch'><parameters interfaceid='UUID'/></virtualport> there",
    ),
    NetworkReason.INTERFACE_TWICE: Template(
        "VM {other} has the interface id {interface} as well, is older than {vm}, and keeps its port in OVN",
        "write another interfaceid in the definition of {vm} (see uuidgen)",
    ),
    NetworkReason.MAC_INVALID: Template("spec.mac: {problem}", "{remedy}"),
    NetworkReason.MAC_DIFFERS: Template(
        "interface {number} in the definition of {vm} has MAC {mac}", "write the same in spec.mac"
    ),
    NetworkReason.MAC_TWICE: Template("port {other} has MAC {mac} on network {network} as well", "change one of them"),
    NetworkReason.ADDRESS_TWICE: Template(
        "port {other} has address {address} on network {network} as well", "change spec.addresses of one of them"
    ),
    NetworkReason.NETWORK_CHANGED: Template(
        "the port stays on network {network} until VM {vm} is stopped, and is on {wanted} then",
        "stop {vm}, and start it again",
    ),
    NetworkReason.MODE_CHANGED: Template(
        "the port stays {mode} until VM {vm} is stopped, and is {wanted} then", "stop {vm}, and start it again"
    ),
    NetworkReason.ADDRESSES_CHANGED: Template(
        "the port keeps the addresses that it has until VM {vm} is stopped", "stop {vm}, and start it again"
    ),
    NetworkReason.NO_ADDRESS: Template("{problem}", "{remedy}"),
    NetworkReason.FOREIGN_ROW: Template(
        "OVN has a {row}, which belongs to {owner}",
        "delete it there if it is not needed, or give the network, interface or address another name, id or value",
    ),
    NetworkReason.OVN_REFUSED: Template("{problem}", "{remedy}"),
    NetworkReason.ROW_MISSING: Template("OVN lacks {row}", _CONTROLLER),
    NetworkReason.ROW_WRONG: Template("{row} is wrong in {columns}", _CONTROLLER),
    NetworkReason.ROW_SURPLUS: Template("OVN has {row}, which nothing asks for", _CONTROLLER),
    NetworkReason.NO_PORT: Template(
        "{vm} runs and has rows in OVN for interface {interface}, but no port: they stay until it is stopped",
        "make the port again; or make and delete it, or stop {vm}, if it is not to have one",
    ),
    NetworkReason.MAC_CONFLICT: Template(
        "{rows} both have MAC {subject} on {place}: one may drop what the other should get", "delete one of them"
    ),
    NetworkReason.ROUTE_CONFLICT: Template(
        "{rows} are two routes for {subject} on {place}: they share what is sent there", "delete one of them"
    ),
    NetworkReason.ADDRESS_CONFLICT: Template(
        "{rows} both have address {subject} on network {place}", "give one of the VMs another address"
    ),
    NetworkReason.BOUND_ELSEWHERE: Template(
        "port {port} is bound by chassis {found}, not by {wanted} of {host}", "see ovn-controller on {host}"
    ),
    NetworkReason.PORT_DOWN: Template(
        "port {port} is bound on {host} and not up", "see ovn-controller and Open vSwitch on {host}"
    ),
    NetworkReason.CHASSIS_SILENT: Template(
        "chassis {chassis} has not answered since change {change}; OVN is at {now}, and goes on to show as up what is "
        "bound there",
        "see ovn-controller on {host}",
    ),
    NetworkReason.NORTHD_BEHIND: Template(
        "no chassis has followed since change {change}, and OVN is at {now}", "see whether ovn-northd runs"
    ),
    NetworkReason.MAC_LEARNED: Template(
        "a router has learned {found} for {address}, which is that of {mac}",
        "find who else answers for the address; ovn-sbctl list MAC_Binding",
    ),
}
