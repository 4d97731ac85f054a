"""OpenStack: a session with Keystone, Nova's lists, Limes' commitments, and one mapping of Nova's records.

What needs openstacksdk imports it when it is used (the extra ``openstack``).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.openstack.keystone import INVALID_S, VALID_S, KeystoneProjects, KeystoneTokens
    from outlive.drivers.openstack.limes import LimesClient
    from outlive.drivers.openstack.login import check_clouds_file
    from outlive.drivers.openstack.nova import NovaClient
    from outlive.drivers.openstack.nova_inventory import NovaInventory
    from outlive.drivers.openstack.nova_moves import NovaMoves
    from outlive.drivers.openstack.nova_vms import NovaVms
    from outlive.drivers.openstack.session import OpenStackSession
else:
    __getattr__ = load_exports(__name__)
