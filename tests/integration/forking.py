"""Fork ranks from a process that has only imported: torch must not have run anything before.

It imports what a rank would import in its first step, or each rank takes 2 CPU seconds for it.
"""

import os
import random
import sys
import traceback

import torch._dynamo  # noqa: F401

import hydragnn_hpo.kernels.preload  # noqa: F401
from hydragnn_hpo.launching.host_network import is_free

PORTS = range(30_000, 32_700)
"""Between those that campaigns choose from and those that the kernel hands out."""


def free_port():
    """Give a port that nobody listens on; whoever asks in the same moment gets another one."""
    begin = random.SystemRandom().randrange(len(PORTS))
    return next(port for port in (*PORTS[begin:], *PORTS[:begin]) if is_free(port))


def fork_ranks(world, work):
    """Call ``work()`` in each of ``world`` ranks on this host, and see that all end well."""
    port = free_port()
    children = [_forked(rank, world, port, work) for rank in range(world)]
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ended == [0] * world, ended


def _forked(rank, world, port, work):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # a process group must not be taken down
