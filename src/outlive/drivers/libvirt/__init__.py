"""The hypervisor of one host by libvirt and QEMU: ``HypervisorPort`` (docs/reference/hypervisor.md).

libvirt makes and lists domains; who is really there is read from the processes themselves, and what a guest is doing is
asked of its QEMU where libvirt cannot know. Modules: ``threads`` (for calls that may hang), ``service`` (calls of
libvirt in them, each with a deadline), ``xml``, ``runs`` (what was asked for, on disk), ``processes``, ``qmp``,
``migration``, ``statistics``, ``consoles`` (logs of serial ports), and ``hypervisor`` (the port).
"""
