"""What the fleet hears of a cluster, from a driver that is acted here."""

import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.fleet.transport import Call, News
from hydragnn_hpo.launching.ray import ray_transport as module
from hydragnn_hpo.launching.ray.cluster import missing
from hydragnn_hpo.launching.ray.inside import Ground, find_ground
from hydragnn_hpo.launching.ray.member import head_argv, member_argv, persist
from hydragnn_hpo.launching.wire.door import DoorPlate

HOSTS = ["node10-aaaaaaaa", "node2-bbbbbbbb", "node1-ffffffff"]


class Acted:
    """In place of a ``Membership``."""

    def __init__(self, address, *, tag, environment, log):
        self.address, self.tag, self.failure = address, tag, None
        self.hosts = {name: {"CPU": 2.0, "GPU": 0.0} for name in HOSTS}
        self.inbox, self.orders, self.gone = [], [], False

    def say(self, op, **order):
        self.orders.append({"op": op, **order})

    def read(self):
        told, self.inbox = self.inbox, []
        return told

    def wait(self, hosts=1):
        if len(self.hosts) < hosts:
            raise ConfigError(f"wanted are {hosts}.")

    def close(self):
        self.gone = True


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "Membership", Acted)
    monkeypatch.setattr(module, "admit", lambda *_: None)

    def opened(expected=(), **machine):
        config = MachineConfig(backend="ray", **machine)
        ground = Ground("127.0.0.1:6379", {}, expected=expected)
        return module.RayTransport(config, ground, run_dir=tmp_path)

    return opened


def call(tmp_path: Path) -> Call:
    return Call(tmp_path, DoorPlate("127.0.0.1", 5, 1, "secret", 10.0, "tag"))


def test_hosts_stand_in_the_order_of_their_numbers(make):
    assert make().hosts == ("node1-ffffffff", "node2-bbbbbbbb", "node10-aaaaaaaa")


def test_only_as_many_hosts_are_used_as_wished_and_others_take_their_place(make):
    transport = make(hosts=2)
    assert transport.hosts == ("node1-ffffffff", "node2-bbbbbbbb")
    del transport.membership.hosts["node1-ffffffff"]
    assert transport.hosts == ("node2-bbbbbbbb", "node10-aaaaaaaa")


def test_hosts_that_are_left_alone_get_no_agent(make, tmp_path):
    (tmp_path / "exclude.hosts").write_text("node2\n")
    assert make().hosts == ("node1-ffffffff", "node10-aaaaaaaa")
    (tmp_path / "exclude.hosts").write_text("node[1-2],node10\n")
    with pytest.raises(ConfigError, match="all 3 hosts are excluded"):
        make()


def test_too_few_hosts_are_a_sentence(make):
    with pytest.raises(ConfigError, match="wanted are 4"):
        make(hosts=4)


def test_an_agent_is_told_where_its_controller_is_but_not_the_token(make, tmp_path):
    transport = make()
    transport.start(["node2-bbbbbbbb"], call(tmp_path))
    (order,) = transport.membership.orders
    assert order["argv"][:3] == ["-P", "-m", "hydragnn_hpo.launching.agent"]
    assert order["argv"][3:] == ["--host", "node2-bbbbbbbb"]
    assert order["log"] == str(tmp_path / "agents" / "node2-bbbbbbbb.log")
    assert "secret" not in json.dumps(order)


def test_where_files_are_not_shared_the_token_goes_along_and_no_path_does(make, tmp_path):
    transport = make(shared_files=False)
    transport.start(["node2-bbbbbbbb"], call(tmp_path))
    (order,) = transport.membership.orders
    assert order["log"] is None
    assert "secret" in json.dumps(order["environment"])
    assert "secret" not in json.dumps(order["argv"])


@pytest.mark.parametrize(
    ("code", "said", "kind", "reason"),
    [
        (0, "", "gone", "its agent was lost: it said nothing"),
        (-9, "a\nb", "gone", "its agent was lost: b"),
        (None, "The actor died", "gone", "its agent was lost: The actor died"),
        (1, "Traceback\nNo module", "failed", "its agent ended with code 1: No module"),
    ],
)
def test_the_end_of_an_agent_is_news(make, code, said, kind, reason):
    transport = make()
    transport.membership.inbox = [{"event": "gone", "host": "h", "code": code, "said": said}]
    assert transport.poll() == [News("h", kind, reason)]
    assert transport.poll() == []


def test_answers_and_news_are_told_apart_whoever_reads_first(make):
    transport = make()
    gone = {"event": "gone", "host": "h", "code": 0, "said": ""}
    reserved = {"event": "reserved", "job": "j", "devices": []}
    transport.membership.inbox = [{"event": "joined"}, gone, reserved]
    assert transport.answers() == [reserved]
    assert [news.host for news in transport.poll()] == ["h"]
    assert transport.answers() == []


def test_a_lost_driver_is_replaced_and_told_again_what_it_may_not_know(make, tmp_path):
    transport = make()
    transport.start(["node1-ffffffff", "node2-bbbbbbbb"], call(tmp_path))
    lost = transport.membership
    gone = {"event": "gone", "host": "node1-ffffffff", "code": 0, "said": ""}
    lost.inbox, lost.gone, lost.hosts = [gone], True, {"node2-bbbbbbbb": {}}

    assert [news.host for news in transport.poll()] == ["node1-ffffffff"]

    assert transport.membership is not lost
    assert transport.membership.orders == lost.orders[1:]
    assert transport.hosts == ("node2-bbbbbbbb",), "until the new one tells"


def test_a_driver_that_is_lost_time_and_again_is_not_replaced(make, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    transport = make()
    for _ in range(3):
        transport.membership.gone = True
        transport.poll()
    transport.membership.gone = True
    with pytest.raises(JobError, match="was lost 4 times in a minute: see .*ray-driver.log"):
        transport.poll()


def test_drivers_that_are_lost_in_the_course_of_hours_are_replaced(make, monkeypatch):
    clock = itertools.count(0, 61)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    transport = make()
    for _ in range(10):
        transport.membership.gone = True
        transport.poll()


def test_a_cluster_that_is_gone_is_a_sentence(make):
    transport = make()
    transport.membership.gone, transport.membership.failure = True, "it cannot be joined."
    with pytest.raises(JobError, match="the Ray cluster was lost: it cannot be joined"):
        transport.poll()


def test_hosts_that_do_not_come_are_named_and_done_without(make, monkeypatch, caplog):
    monkeypatch.setattr(module, "_ARRIVAL_SECONDS", 0.01)
    monkeypatch.setattr(module, "wait", lambda *_: None)
    monkeypatch.setattr(Acted, "channel", None, raising=False)

    transport = make(expected=("node1", "node7", "node10", "node3"))

    assert "2 of 4 hosts did not join our Ray cluster (node3, node7)" in caplog.text
    assert len(transport.hosts) == 3


def test_without_address_and_allocation_there_is_no_cluster(tmp_path):
    machine = MachineConfig(backend="ray")
    with pytest.raises(ConfigError, match="give the head's host:port, or run inside salloc"):
        find_ground(machine, run_dir=tmp_path, environment={}, token=None)


def test_missing_hosts_are_named():
    assert missing(["n1", "n2", "n3"], ["n3-12345678", "n1-87654321"]) == ["n2"]


def test_what_becomes_a_cluster_is_plain_data():
    head = head_argv("10.0.0.1:6379", "/tmp/x")
    assert {"--head", "--block", "--port=6379", "--node-ip-address=10.0.0.1"} <= set(head)
    assert {"--num-cpus=0", "--include-dashboard=false"} <= set(head)
    argv = member_argv("10.0.0.1:6379", interface="hsn0", name_of="SLURMD_NODENAME")
    assert argv[3:] == [
        *("hydragnn_hpo.launching.ray.member", "--head", "10.0.0.1:6379"),
        *("--name-of", "SLURMD_NODENAME", "--interface", "hsn0"),
    ]


@pytest.mark.parametrize(("codes", "last", "runs"), [("0", 0, 1), ("110", 0, 3), ("1110", 1, 3)])
def test_a_host_that_does_not_come_up_is_started_again(tmp_path, codes, last, runs):
    script = (
        "import sys; p = open(sys.argv[1], 'a+'); p.write('x'); p.seek(0);"
        "sys.exit(int(sys.argv[2][len(p.read()) - 1]))"
    )
    count = tmp_path / "count"

    assert persist([sys.executable, "-c", script, str(count), codes], os.environ) == last
    assert count.read_text() == "x" * runs
