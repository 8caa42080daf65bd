"""The agent of one host: ``python -m hydragnn_hpo.launching.agent --host ID``."""

import argparse
import os
import secrets
import signal
import sys
import time

from hydragnn_hpo.launching import linux
from hydragnn_hpo.launching.dialer import Dialer
from hydragnn_hpo.launching.protocol import DOOR
from hydragnn_hpo.launching.scratch import Scratch
from hydragnn_hpo.launching.serving import Agent
from hydragnn_hpo.launching.strays import AGENT, HOST, RUN, end_tagged, host_tag


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.agent")
    parser.add_argument("--host", help="id of this host")
    parser.add_argument("--host-of", help="environment variable that holds the id")
    parser.add_argument("--parent", type=int, help="process with which to die")
    return parser.parse_args()


def _tagged(host: str) -> None:
    """Execute this program again, if need be, so that its environment tells what it is."""
    if AGENT not in os.environ:
        tags = {HOST: host_tag(os.environ[RUN], host), AGENT: secrets.token_hex(8)}
        os.execve(sys.executable, sys.orig_argv, os.environ | tags)


def main() -> None:
    """Be the agent of this host, in place of any that is left of an earlier life."""
    arguments = _arguments()
    if arguments.parent:
        linux.die_with_parent(arguments.parent)
    host = arguments.host or os.environ[arguments.host_of]
    _tagged(host)
    linux.name_process("hpo-agent")
    for number in (signal.SIGINT, signal.SIGTERM):  # a step that ends sends them to all: ranks
        signal.signal(number, signal.SIG_IGN)  # are to leave checkpoints, and need us for that
    end_tagged(HOST, os.environ[HOST])
    source = os.environ.pop(DOOR)  # ranks have no business there
    scratch = Scratch(os.environ[HOST])
    try:
        Agent(host, os.environ[AGENT], Dialer(source, time.monotonic()), scratch).serve()
    finally:
        scratch.remove()


if __name__ == "__main__":
    main()
