"""Steps of agents start once Slurm has said which hosts can have one, and nobody waits for that."""

import math
import os
import time

import pytest
from processes import SECONDS

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching import scheduler_commands
from hydragnn_hpo.launching.slurm_allocation import Allocation
from hydragnn_hpo.launching.transports.slurm import SlurmTransport
from hydragnn_hpo.launching.transports.transport import AgentCall


class Stage:
    """A transport whose sinfo says nothing until it is told what; its srun ends at once."""

    def __init__(self, folder):
        self.folder = folder
        self.pipe = folder / "pipe"
        self.steps = folder / "steps"
        os.mkfifo(self.pipe)
        self._tool("sinfo", f"exec cat {self.pipe}")
        self._tool("srun", f'echo "$@" >> {self.steps}')
        held = Allocation("17", ("n1", "n2"), "127.0.0.1", math.inf)
        self.transport = SlurmTransport(held, run_dir=folder)
        self.call = AgentCall(folder, "tag", 1)
        self.news = []

    def _tool(self, name, command):
        (self.folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (self.folder / name).chmod(0o755)

    def say(self, text):
        self.pipe.write_text(text)

    def until(self, look):
        deadline = time.monotonic() + SECONDS
        while not look():
            assert time.monotonic() < deadline, self.news
            self.news += self.transport.poll()


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stage = Stage(tmp_path)
    yield stage
    stage.transport.close()


def test_a_slow_scheduler_keeps_no_host_waiting(stage):
    """Whoever did would answer no agent for a minute, and every rank of every host would end."""
    stage.transport.start(["n1", "n2"], stage.call)
    assert stage.transport.poll() == []
    assert not stage.steps.exists()
    stage.say("n1|allocated\nn2|down*\n")
    stage.until(lambda: stage.steps.exists() and "--nodelist=n1 " in stage.steps.read_text())
    stage.until(lambda: [n.reason for n in stage.news if n.host == "n2"] == ["is down*"])


def test_a_scheduler_that_never_answers_is_news_of_hosts(stage, monkeypatch):
    monkeypatch.setattr(scheduler_commands, "QUERY_SECONDS", 0.05)
    stage.transport.start(["n1"], stage.call)
    stage.until(lambda: stage.news)
    (news,) = stage.news
    assert (news.host, news.kind) == ("n1", "failed")
    assert "'sinfo' gives no answer" in news.reason
    assert not stage.steps.exists()


def test_a_question_that_is_open_at_the_end_is_dropped(stage):
    stage.transport.start(["n1"], stage.call)
    (request,) = stage.transport._requests
    stage.transport.close()
    assert request.states._process.poll() is not None


def test_a_log_that_cannot_be_written_is_no_more_than_news_of_hosts(stage):
    (stage.folder / "agents").touch()
    stage.transport.start(["n1"], stage.call)
    stage.say("n1|allocated\n")
    stage.until(lambda: stage.news)
    assert [(news.host, news.kind) for news in stage.news] == [("n1", "failed")]
    assert "agents: cannot be written" in stage.news[0].reason


@pytest.mark.parametrize("answer", ["echo 'CANCELLED|17'", "echo 'Invalid job id' >&2; exit 1"])
def test_an_allocation_that_is_gone_ends_the_work(stage, answer):
    """Starts of agents fail for as long as anybody tries; Slurm knows why."""
    stage._tool("squeue", answer)
    stage.transport.start(["n1"], stage.call)
    stage.say("n1|allocated\n")
    with pytest.raises(JobError, match="Slurm job 17 has ended.* use another one"):
        stage.until(lambda: False)


@pytest.mark.parametrize("answer", ["echo 'RUNNING|17'", "exit 1"])
def test_an_allocation_that_goes_on_gets_other_agents(stage, answer):
    stage._tool("squeue", f"echo >>{stage.folder}/asked; {answer}")
    stage.transport.start(["n1"], stage.call)
    stage.say("n1|allocated\n")
    stage.until(lambda: (stage.folder / "asked").exists() and stage.transport._state is None)
    assert [news.kind for news in stage.news] == ["failed"]


def test_a_host_without_an_agent_is_news_while_the_others_work(stage):
    """One srun serves all hosts: it lives as long as the last of its agents."""
    stage._tool(
        "srun",
        f"echo 'srun: error: n2: task 1: Exited with exit code 127'; echo '1: python3: not found'\n"
        f"exec cat {stage.pipe}",
    )
    stage.transport.start(["n1", "n2"], stage.call)
    stage.say("n1|allocated\nn2|allocated\n")
    stage.until(lambda: stage.news)
    assert [(n.host, n.kind, n.reason) for n in stage.news] == [
        ("n2", "failed", "has no agent, exited with exit code 127: python3: not found")
    ]
    assert stage.transport.find_last_words("n1") == f"see {stage.folder}/agents/001-0001.log"
    stage.say("agent on n1: no route to the controller.\nn1-ib is another host\n")
    stage.until(lambda: len(stage.news) == 2)  # its launcher has ended: n2 is not told again
    assert stage.news[1].host == "n1"


def test_the_last_line_about_a_silent_host_is_found(stage):
    stage._tool("srun", f"echo 'n1: no route'; echo 'n1-ib: else'; exec cat {stage.pipe}")
    stage.transport.start(["n1", "n2"], stage.call)
    stage.say("n1|allocated\nn2|allocated\n")
    log = stage.folder / "agents" / "001-0001.log"
    stage.until(lambda: log.exists() and "else" in log.read_text())
    assert stage.transport.find_last_words("n1") == f"n1: no route; see {log}"
    assert stage.transport.find_last_words("n2") == f"see {log}"
    stage.say("")
