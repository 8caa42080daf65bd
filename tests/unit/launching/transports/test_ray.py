"""What is checked before a Ray cluster is joined, and what the fleet hears of one.

The driver is faked here; real clusters: see ``integration/test_ray.py`` and the contracts.
"""

import itertools
import platform
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_cluster import make_token

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.transports import ray as module
from hydragnn_hpo.launching.transports.ray import (
    AgentEnded,
    ClusterHosts,
    JoinCluster,
    JoinFailed,
    RayTransport,
    examine_cluster,
    ray_environment,
    split_address,
)
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews

# -- the token -------------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path):
    return make_token(tmp_path / "token")


def named(token: Path) -> dict[str, str]:
    return {"RAY_AUTH_TOKEN_PATH": str(token)}


def test_ray_is_set_to_demand_the_token_and_to_report_nothing(token):
    given = {"PATH": "/bin", "RAY_AUTH_MODE": "disabled", "ROCR_VISIBLE_DEVICES": "0,1"}
    assert ray_environment(given | named(token)) == {
        "PATH": "/bin",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    token.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read this token: run 'chmod 600"):
        ray_environment(named(token))


def test_the_token_is_looked_for_where_ray_looks(tmp_path, token, monkeypatch):
    """Ray docs, "Token Sources and Precedence": the text, the named file, ``~/.ray/auth_token``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    own = make_token(tmp_path / ".ray" / "auth_token")

    assert ray_environment({})["RAY_AUTH_TOKEN_PATH"] == str(own)
    assert ray_environment(named(token))["RAY_AUTH_TOKEN_PATH"] == str(token)
    missing = named(tmp_path / "missing")
    assert ray_environment(missing | {"RAY_AUTH_TOKEN": "abc"})["RAY_AUTH_TOKEN"] == "abc"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_without_a_token_nothing_is_joined(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=f"{path}: there is no token .* set RAY_AUTH_TOKEN_PATH"):
        ray_environment(named(path))


# -- the cluster -----------------------------------------------------------------------------

OURS = {"ray": "9.9.9", "python": platform.python_version()}
REFUSED = {"refused": "RPC error: InvalidAuthToken"}
SILENT = {"error": "RpcError: Timed out"}


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def examine(monkeypatch, address):
    """Examine a cluster that gives these answers with our token, and without."""

    def examine(with_token, without):
        def answer(_, environment):
            return without if environment["RAY_AUTH_MODE"] == "disabled" else with_token

        monkeypatch.setattr(module, "_ask_versions", answer)
        monkeypatch.setattr(module, "_ray_version", lambda: "9.9.9")
        examine_cluster(address, {"RAY_AUTH_MODE": "token"})

    return examine


@pytest.mark.parametrize(
    ("with_token", "without", "sentence"),
    [
        (REFUSED, REFUSED, "refuses our token: set RAY_AUTH_TOKEN_PATH"),
        (OURS, OURS, "demands no token, so anybody could use what we start"),
        (OURS, SILENT, "demands no token"),
        (SILENT, SILENT, "does not answer as a Ray cluster does .RpcError: Timed out."),
        (OURS | {"ray": "9.9.8"}, REFUSED, "runs Ray 9.9.8 .* here are Ray 9.9.9 .* same"),
        (OURS | {"python": "3.1.4"}, REFUSED, "under Python 3.1.4, here .* same"),
    ],
)
def test_other_clusters_are_refused(examine, with_token, without, sentence):
    examine(OURS, REFUSED)
    with pytest.raises(ConfigError, match=sentence):
        examine(with_token, without)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.socket() as taken:  # bound but not listening, so that nothing else can
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"nothing answers at 127.0.0.1:{port} .Connection"):
            examine_cluster(f"127.0.0.1:{port}", {})


@pytest.mark.parametrize("address", ["somewhere", "auto", ":6379", "ray://head:10001x", "[::1]:"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(ConfigError, match="set it to host:port"):
        split_address(address)
    assert split_address("head-3.cluster:6379") == ("head-3.cluster", 6379)
    assert split_address("[fe80::1]:6379") == ("fe80::1", 6379)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("time.sleep(60)", {"error": "no answer in 0 s"}),
        ("sys.exit(6)", {"error": "the question ended with code 6"}),
        ('print(\'{"ray": "1"}\')', {"ray": "1"}),
    ],
)
def test_a_question_without_an_answer_is_an_error(monkeypatch, tmp_path, code, answer):
    (tmp_path / "fake_driver.py").write_text(f"import sys, time\n{code}\n")
    monkeypatch.setattr(module, "_DRIVER_MODULE", "fake_driver")
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.4 if "sleep" in code else 60.0)
    assert module._ask_versions("h:1", {"PYTHONPATH": str(tmp_path)}) == answer


# -- the transport ---------------------------------------------------------------------------

HOSTS = ("node1-ffffffff", "node2-bbbbbbbb", "node10-aaaaaaaa")
ENDED = AgentEnded("node1-ffffffff", 0, "")


class FakeDriver:
    """In place of a ``DriverProcess``: keeps its orders, and reports what a test puts in it."""

    def __init__(self, join, *, environment, log):
        self.channel = self
        self.join = join
        self.orders = []
        self.closed = False
        self.inbox = [ClusterHosts(HOSTS[: join.hosts or None], 3)]

    def send(self, order):
        self.orders.append(order)

    def receive(self):
        news, self.inbox = self.inbox, []
        return news

    def close(self):
        self.closed = True


@pytest.fixture
def make(monkeypatch, tmp_path, token):
    monkeypatch.setattr(module, "DriverProcess", FakeDriver)
    monkeypatch.setattr(module, "examine_cluster", lambda *_: None)
    monkeypatch.setattr(module, "wait_readable", lambda *_: None)
    monkeypatch.setattr(module, "_RESERVE_SECONDS", 0.05)

    def make(**machine):
        config = MachineConfig(backend="ray", address="127.0.0.1:6379", **machine)
        return RayTransport(config, run_dir=tmp_path, environment=named(token))

    return make


def test_the_hosts_are_those_that_are_reserved(make, tmp_path):
    (tmp_path / "exclude.hosts").write_text("node7 # broken\n")
    transport = make(hosts=2)
    driver = transport._driver
    assert driver.join == JoinCluster(
        "127.0.0.1:6379", module.run_tag(tmp_path), 2, excluded=("node7",)
    )
    assert transport.hosts == HOSTS[:2]

    driver.inbox = [ClusterHosts(HOSTS[1:], 2)]
    transport.poll()

    assert transport.hosts == HOSTS[1:]


def test_too_few_free_hosts_are_refused(make, monkeypatch):
    closed = []
    monkeypatch.setattr(FakeDriver, "close", lambda self: closed.append(self))
    with pytest.raises(ConfigError, match=r"3 of 3 hosts .* were free .* wanted are 4: .* lower"):
        make(hosts=4)
    assert len(closed) == 1, "no driver stays in the cluster"


def test_without_address_package_or_way_to_the_cluster_there_is_a_sentence(
    make, monkeypatch, tmp_path, address
):
    with pytest.raises(ConfigError, match=r"set it to host:port .* set machine.backend to 'slurm'"):
        RayTransport(MachineConfig(backend="ray"), run_dir=tmp_path)
    failed = [JoinFailed("E: why")]
    monkeypatch.setattr(FakeDriver, "receive", lambda self: self.close() or failed)
    with pytest.raises(ConfigError, match=r"cannot be joined from this host \(E: why\): run"):
        make()
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(ConfigError, match=r"pip install .hydragnn-hpo\[ray\]"):
        examine_cluster(address, {})


@pytest.mark.parametrize(
    ("code", "output", "kind", "reason"),
    [
        (0, "", "gone", "its agent was lost: it wrote nothing"),
        (-9, "a\nb", "gone", "its agent was lost: b"),
        (None, "The actor died", "gone", "its agent was lost: The actor died"),
        (1, "Traceback\nNo module", "failed", "its agent ended with code 1: No module"),
    ],
)
def test_the_end_of_an_agent_is_news(make, code, output, kind, reason):
    transport = make()
    transport._driver.inbox = [AgentEnded("h", code, output)]
    assert transport.poll() == [HostNews("h", kind, reason)]
    assert transport.poll() == []


def test_a_lost_driver_is_replaced_and_sent_what_it_may_not_know(make, tmp_path):
    transport = make()
    call = AgentCall(tmp_path, "tag", 1)
    transport.start(HOSTS[:2], call)
    lost = transport._driver
    for order, host in zip(lost.orders, HOSTS, strict=False):
        assert (order.host, order.argv[-2:]) == (host, ("--host", host))
        assert order.environment == call.environment()
        assert order.log == str(tmp_path / "agents" / f"{host}.log")
    lost.inbox = [ENDED, ClusterHosts(HOSTS[1:], 2)]
    lost.closed = True

    assert [news.host for news in transport.poll()] == [ENDED.host]

    assert transport._driver is not lost
    assert transport._driver.join.reserved == HOSTS[1:]
    assert transport._driver.orders == lost.orders[1:]
    assert transport.hosts == HOSTS[1:], "until the new one reports"


def lose_driver(transport):
    transport._driver.closed = True
    transport.poll()


@pytest.mark.parametrize(("seconds", "losses"), [(0, 3), (61, 10)])
def test_a_driver_that_is_lost_is_replaced_unless_that_happens_often(
    make, monkeypatch, seconds, losses
):
    transport = make()
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for _ in range(losses):
        lose_driver(transport)
    if seconds == 0:
        with pytest.raises(JobError, match=r"was lost 4 times in a minute: see .*ray-driver.log"):
            lose_driver(transport)


def test_a_cluster_that_is_gone_is_a_sentence(make):
    transport = make()
    transport._driver.inbox = [JoinFailed("E: gone")]
    transport._driver.closed = True
    with pytest.raises(JobError, match=r"the Ray cluster was lost: .*cannot be joined .*E: gone"):
        transport.poll()
