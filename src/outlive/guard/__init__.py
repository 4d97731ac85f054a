"""The guard: the small separate process that empties a host which can no longer prove that it is alive.

It imports the standard library and nothing else of Outlive, so that nothing that can stall the daemon can stall it.
``outlive.guard.main`` is its command; the daemon and the simulation use the names below.
"""

from outlive.guard.clocks import START, Instants, max_elapsed, min_elapsed, read_clocks
from outlive.guard.laboratory import LaboratoryWatchdog
from outlive.guard.messages import MalformedMessage, encode_grant, encode_refusal, encode_request, name_of
from outlive.guard.messages import parse_request
from outlive.guard.options import LIBVIRT, SOCKET, make_parser, read
from outlive.guard.states import CLOSURES, CREATES, CREATE_LIMIT_S, LEGAL, Arm, Beat, CreateBegin, CreateEnd, Disarm
from outlive.guard.states import Event, GuardAction, GuardError, GuardRefusal, GuardState, Looked, Phase
from outlive.guard.states import ServiceState, ServiceStopped, Tick, Transition
from outlive.guard.watchdog import NO_HARDWARE, Watchdog
