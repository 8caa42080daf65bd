"""The agent of one host: ``python -m hydragnn_hpo.launching.agent --host ID``."""

import argparse
import os
import secrets
import signal
import sys
import time

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.agent.serving import Agent
from hydragnn_hpo.launching.host_network import network_of_job
from hydragnn_hpo.launching.launcher_detection import OF_A_STEP
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, end_tagged, host_tag
from hydragnn_hpo.launching.scratch_folders import AgentScratch
from hydragnn_hpo.launching.wire.dialer import Dialer
from hydragnn_hpo.launching.wire.protocol import DOOR


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.agent")
    parser.add_argument("--host", help="id of this host")
    parser.add_argument("--host-of", help="environment variable that holds the id")
    parser.add_argument("--allocation", help="becomes a part of the id")
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
        process_control.die_with_parent(arguments.parent)
    plain = arguments.host or os.environ[arguments.host_of]
    host = f"{plain}@{arguments.allocation}" if arguments.allocation else plain
    _tagged(host)
    process_control.name_process("hpo-agent")
    for number in (signal.SIGINT, signal.SIGTERM):  # a step that ends sends them to all: ranks
        signal.signal(number, signal.SIG_IGN)  # are to leave checkpoints, and need us for that
    end_tagged(HOST, os.environ[HOST])
    if arguments.allocation:  # of a controller here that was alone, and another took over
        ours = f"SLURM_JOB_ID={arguments.allocation}"
        end_tagged(HOST, host_tag(os.environ[RUN], plain), ours)
    source = os.environ.pop(DOOR)  # ranks have no business there
    for name in OF_A_STEP:  # an agent's number is no rank's
        os.environ.pop(name, None)
    os.environ.update(network_of_job(os.environ))
    scratch = AgentScratch(os.environ[HOST])
    try:
        agent = Agent(host, os.environ[AGENT], Dialer(source, time.monotonic()), scratch)
        signal.signal(signal.SIGTERM, agent.end_soon)
        agent.serve()
    except HydraError as error:  # the last line is what the controller tells
        sys.exit(f"error: {error}")
    finally:
        scratch.remove()


if __name__ == "__main__":
    main()
