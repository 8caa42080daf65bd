"""A fleet against agents that do what the test says: lost lines, lost hosts, lost controllers."""

import contextlib
import math
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from processes import SECONDS

import hydragnn_hpo
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching import fleet as fleet_module
from hydragnn_hpo.launching import host_registry
from hydragnn_hpo.launching.fleet import Fleet
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.link import (
    AgentLink,
    ControllerAddress,
    announce_leaving,
    read_address,
    read_keys,
)
from hydragnn_hpo.launching.protocol import (
    VERSION,
    AskRank,
    DropJob,
    Farewell,
    ForgetJob,
    Goodbye,
    Heartbeat,
    Hello,
    HostSlots,
    JobEnded,
    JobStarted,
    KnownJob,
    Lease,
    NewRecords,
    PeerEnded,
    PortTaken,
    RankEnded,
    Rendezvous,
    StartJob,
    StopJob,
    Welcome,
)
from hydragnn_hpo.launching.transports.transport import HostNews

LEASE = 0.8


class Clock:
    """Goes on as time does, but for pauses: who is kept from running misses nothing."""

    def __init__(self):
        self.now = self.seen = time.monotonic()
        self.turn, self.most = 0.02, 0.03

    def monotonic(self):
        now = time.monotonic()
        self.now += min(now - self.seen, self.most)
        self.seen = now
        return self.now

    @contextlib.contextmanager
    def nearly_standing(self):
        """Leave others their time: no lease ends because a thread got no turn."""
        before = self.turn, self.most
        self.turn, self.most = 5e-5, 1e-5
        yield
        self.turn, self.most = before


class StubTransport:
    """Notes what is to be started; agents are made by the test."""

    slots = ()
    outlives = True
    allocation = "home"
    address = "127.0.0.1"
    ends_at = math.inf

    def __init__(self, hosts=("a", "b")):
        self.hosts = tuple(hosts)
        self.started, self.news = [], []

    def start(self, hosts, call):
        self.started += hosts

    def poll(self):
        events, self.news = self.news, []
        return events

    def find_last_words(self, host):
        return f"see {host}.log"

    def end(self, host):
        return False

    def close(self):
        pass


class StubAgent:
    """Speaks as an agent does."""

    def __init__(self, stage, host, life="1", jobs=(), version=hydragnn_hpo.__version__):
        self.stage = stage
        self.host = host
        self.life = life
        self.read = []
        self.version = version
        self.beats = True
        stage.agents[host] = self
        self.link = None
        self.connect(jobs)

    def connect(self, jobs=()):
        self.disconnect()
        address = read_address(self.stage.folder)
        self.link = AgentLink(address, read_keys(self.stage.folder))
        hello = Hello(VERSION, self.version, address.run, self.host, self.life, tuple(jobs))
        self.say(hello)
        with self.stage.clock.nearly_standing():  # until the handshake is done, however long
            self.stage.until(lambda: self.read or self.link.broken, "an answer")

    def disconnect(self):
        if self.link is not None:
            self.link.close()
        self.link = None
        self.read.clear()

    def say(self, message):
        self.link.send(message)

    def join(self, ends_at=None):
        slots = tuple(Slot(self.host, index, (), "cpu") for index in range(2))
        self.say(HostSlots(slots, "127.0.0.1", "lo", ends_at))

    def live(self):
        """Read what was sent, and beat."""
        if self.link is None:
            return
        if self.beats:
            self.say(Heartbeat(1.0))
        self.read += [m for m in self.link.receive() if not isinstance(m, Lease)]

    def orders(self, kind, job="j"):
        return [m for m in self.read if isinstance(m, kind) and getattr(m, "job", job) == job]

    def await_order(self, kind, job="j"):
        self.stage.until(lambda: self.orders(kind, job), f"{kind.__name__} of {job}")
        return self.orders(kind, job)[-1]

    def run(self, job="j"):
        order = self.await_order(StartJob, job)
        self.say(JobStarted(job, tuple(100 + rank.rank for rank in order.ranks)))
        return order

    def write(self, number, offset, job="j"):
        self.say(NewRecords(job, [{"n": number}], offset))

    def end(self, job="j", code=0, ranks=(0,), first=None):
        self.say(JobEnded(job, dict.fromkeys(ranks, code), False, first, None))


class Stage:
    def __init__(self, folder, clock):
        self.folder = folder
        self.events = []
        self.agents = {}
        self.clock = clock
        self.transport = StubTransport()
        self.fleet = None

    def open(self):
        self.fleet = Fleet(
            self.transport,
            run_dir=self.folder,
            lease_seconds=LEASE,
            jobs={"work": "x:y"},
            preload=(),
        )
        return self.fleet

    def agent(self, host, **more):
        agent = StubAgent(self, host, **more)
        agent.await_order(Welcome)
        agent.join()
        return agent

    def one(self):
        """Open a fleet of which host a has joined."""
        self.open()
        agent = self.agent("a")
        self.until(lambda: self.fleet.slots, "slots")
        return agent

    def both(self):
        """Open a fleet whose two hosts have joined."""
        self.open()
        agents = self.agent("a"), self.agent("b")
        self.until(lambda: len(self.fleet.slots) == 4, "slots")
        return agents

    def foreign(self, name):
        """Open a fleet of two hosts, and have one of another allocation join."""
        self.both()
        agent = self.agent(name)
        self.until(lambda: len(self.fleet.slots) == 6, "slots of a foreign host")
        return agent

    def fail(self, host="a"):
        """Have the transport say that no agent can start on a host."""
        self.transport.news = [HostNews(host, "failed", "is down")]

    def tried(self, times, host="a"):
        """Wait until so many agents of a host were started."""
        self.until(lambda: self.transport.started.count(host) == times, "another try")

    def turn(self):
        self.events += self.fleet.poll(self.clock.turn)
        for agent in self.agents.values():
            agent.live()

    def until(self, look, what):
        deadline = time.monotonic() + SECONDS
        while not look():
            assert time.monotonic() < deadline, f"no {what}: {self.events}"
            self.turn()

    def rest(self, seconds=0.2):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.turn()

    def kinds(self):
        return [event.kind for event in self.events]

    def wait(self, kind, job=None):
        matching_events = lambda: [e for e in self.events if (e.kind, e.job) == (kind, job)]  # noqa: E731
        self.until(matching_events, f"{kind} of {job}")
        return matching_events()[-1]

    def start(self, *slots, name="j", other_hosts=()):
        chosen = tuple(Slot(n[0], int(n[1]), (), "cpu") for n in slots)
        files = [self.folder / f"{name}.{end}" for end in ("log", "jsonl")]
        job = Job(name, "work", len(chosen), {}, *files, chosen, other_hosts)
        self.fleet.start(job)
        return job


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(host_registry, "MARGIN_SECONDS", 0.2)
    monkeypatch.setattr(host_registry, "_CLOSING_SECONDS", 0.1)
    clock = Clock()
    for module in (fleet_module, host_registry):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=clock.monotonic, time=time.time)
        )
    stage = Stage(tmp_path, clock)
    yield stage
    for agent in stage.agents.values():
        agent.disconnect()
    if stage.fleet:
        stage.fleet.close()


def test_hosts_are_there_once_their_agents_are(stage):
    stage.open()
    assert (stage.fleet.slots, stage.transport.started) == ((), ["a", "b"])

    stage.agent("b")
    stage.until(lambda: len(stage.fleet.slots) == 2, "slots of b")
    stage.agent("a")
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots of both")

    assert [slot.name for slot in stage.fleet.slots] == ["a:0", "a:1", "b:0", "b:1"]
    assert [e.data["slots"] for e in stage.events] == [["b:0", "b:1"], ["a:0", "a:1"]]


def test_the_other_hosts_start_once_rank_0_has_its_port(stage):
    """Where somebody listens already, all meet elsewhere."""
    a, b = stage.both()
    stage.start("b0", "a0", "b1")

    first = b.await_order(StartJob)
    assert [rank.rank for rank in first.ranks] == [0, 2]
    stage.rest()
    assert not a.orders(StartJob)
    b.say(PortTaken("j"))
    stage.until(lambda: len(b.orders(StartJob)) == 2, "another port")
    again = b.run()
    other = a.run()

    assert first.meet.port != again.meet.port
    assert other.meet == again.meet
    assert stage.wait("started", "j").data["pids"] == [100, 101, 102]
    environment = other.ranks[0].environment
    assert environment["MASTER_PORT"] == str(again.meet.port)
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert other.watch is None
    assert again.watch.endswith("j.jsonl")


@pytest.mark.parametrize("how", ["port taken", "line cut"])
def test_a_stop_is_not_lost_with_the_start_that_it_followed(stage, how):
    """The agent knew nothing of the job yet: it is started again, and told again to stop."""
    a = stage.one()
    stage.start("a0")
    a.await_order(StartJob)
    stage.fleet.stop("j", grace=7.0)
    a.await_order(StopJob)
    a.read.clear()

    if how == "port taken":
        a.say(PortTaken("j"))
    else:
        a.disconnect()
        a.connect([])
        a.await_order(Welcome)
        a.join()

    a.await_order(StartJob)
    assert a.await_order(StopJob).grace == 7.0


def test_one_end_is_reported_once_all_ranks_everywhere_are_gone(stage):
    a, b = stage.both()
    stage.start("a0", "b0")
    a.run(), b.run()
    stage.wait("started", "j")

    b.say(RankEnded("j", 1, 3))
    assert a.await_order(PeerEnded).code == 3
    b.end(code=3, ranks=(1,), first=1)
    b.await_order(ForgetJob)
    stage.rest()
    assert "ended" not in stage.kinds()
    a.end(code=-15, ranks=(0,), first=0)

    ended = stage.wait("ended", "j").data
    assert (ended["codes"], ended["first"]) == ([-15, 3], 1)
    b.end(code=3, ranks=(1,), first=1)  # again: it is not known any more
    b.await_order(DropJob)
    stage.rest()
    assert stage.kinds().count("ended") == 1


def test_records_are_reported_after_the_start_and_before_the_end(stage):
    a, b = stage.both()
    stage.start("a0", "b0")
    a.run()
    a.write(1, 9)
    stage.rest()
    assert "record" not in stage.kinds()
    b.run()
    a.write(2, 18)
    a.end(), b.end(ranks=(1,))
    stage.wait("ended", "j")

    assert stage.kinds()[2:] == ["started", "record", "record", "ended"]
    assert [e.data["n"] for e in stage.events if e.kind == "record"] == [1, 2]


def test_wishes_and_stops_go_to_all_hosts_of_a_job_and_jobs_meet_at_different_ports(stage):
    a, b = stage.both()
    stage.start("b0", "a0")
    stage.start("a1", name="k")
    ports = {b.run().meet.port, a.run().meet.port, a.run("k").meet.port}
    assert len(ports) == 2
    stage.wait("started", "j")

    stage.fleet.ask("j", "yield")
    stage.fleet.stop("j", grace=7.0)

    assert b.await_order(AskRank).request == "yield"
    assert [x.await_order(StopJob).grace for x in (a, b)] == [7.0, 7.0]


def test_a_line_that_is_cut_loses_nothing(stage):
    """What the agent may not have heard is said again, and records go on where they were."""
    a = stage.one()
    stage.start("a0")
    order = a.run()
    stage.start("a1", name="k")
    a.write(1, 9)
    stage.wait("record", "j")
    stage.fleet.stop("j", grace=7.0)
    a.await_order(StartJob, "k")
    a.disconnect()
    a.read.clear()

    a.connect([known(order)])

    assert a.await_order(Welcome).keep == {"j": 9}
    a.join()
    assert a.await_order(StopJob).grace == 7.0
    assert a.await_order(StartJob, "k"), "the agent never heard of it"
    assert not a.orders(StartJob, "j")
    a.end("j")
    stage.wait("ended", "j")
    assert not {"agent_lost", "host_lost"} & set(stage.kinds())


def test_a_silent_host_is_lost_when_its_lease_is_over_and_not_before(stage):
    a, b = stage.both()
    stage.start("a0", name="x")
    stage.start("b0", "a1", name="y")
    for agent, jobs in ((a, "x"), (b, "y"), (a, "y")):
        agent.run(jobs)
    stage.wait("started", "y")
    stage.wait("started", "x")

    began = stage.clock.monotonic()
    a.beats = False
    stage.wait("ended", "x")

    assert stage.clock.monotonic() - began >= LEASE
    assert b.await_order(PeerEnded, "y").code == -9
    stage.rest()
    assert "host_lost" not in stage.kinds(), "a job of it has not ended yet"
    assert [slot.host for slot in stage.fleet.slots] == ["b", "b"]
    b.end("y", code=-15)
    assert stage.wait("ended", "y").data["codes"] == [-15, -9]
    assert stage.wait("host_lost").data["host"] == "a"
    assert stage.kinds()[-2:] == ["ended", "host_lost"]
    assert stage.transport.started.count("a") >= 2


def with_another_host(stage):
    """Run a job on a that has processes on b, which no agent knows of."""
    a, b = stage.both()
    stage.start("a0", other_hosts=("b",))
    assert a.run().other_hosts == ("b",)
    stage.wait("started", "j")
    assert not b.orders(StartJob)
    return a, b


def test_a_job_that_fails_ends_once_its_other_hosts_are_known_to_live(stage):
    a, _ = with_another_host(stage)
    began = stage.clock.monotonic()
    a.end(code=1)

    assert stage.wait("ended", "j").data["away"] == []
    assert LEASE > stage.clock.monotonic() - began >= LEASE / 3, "a heartbeat"


def test_a_job_that_failed_for_a_host_that_was_silent_before_says_so(stage):
    a, b = with_another_host(stage)
    b.beats = False
    stage.rest(LEASE / 4)
    a.end(code=1)

    ended = stage.wait("ended", "j").data
    assert (ended["codes"], ended["away"]) == ([1], ["b"])
    assert stage.wait("host_lost").data["host"] == "b"
    assert stage.kinds()[-2:] == ["ended", "host_lost"]


def test_a_job_that_ended_well_or_was_stopped_waits_for_no_host(stage):
    a, b = with_another_host(stage)
    b.beats = False
    stage.start("a1", name="k", other_hosts=("b",))
    a.run("k")
    stage.wait("started", "k")
    began = stage.clock.monotonic()
    a.end()
    stage.fleet.stop("k")
    a.await_order(StopJob, "k")
    a.end("k", code=143)

    stage.wait("ended", "k")
    stage.wait("ended", "j")
    assert stage.clock.monotonic() - began < LEASE / 3


def test_a_job_whose_other_host_is_gone_never_starts(stage):
    stage.transport.hosts = ("a",)
    a = stage.one()
    stage.start("a0", other_hosts=("b",))

    ended = stage.wait("ended", "j").data
    assert (ended["codes"], ended["away"]) == ([-15], ["b"])
    stage.rest(0.1)
    assert not a.orders(StartJob)


@pytest.mark.parametrize("back", [True, False])
def test_an_adopted_job_knows_its_other_hosts(stage, back):
    adopt(stage)
    alone = msgspec.structs.replace(bring("j", slots=("a:0",)), other_hosts=("b",))
    a = stage.agent("a", jobs=[alone])
    stage.wait("adopted", "j")
    if back:
        stage.agent("b")
        a.end(code=1)
    else:
        assert a.await_order(PeerEnded).code == -9
        a.end(code=-15)

    assert stage.wait("ended", "j").data["away"] == ([] if back else ["b"])


def test_another_agent_on_a_host_proves_that_all_of_the_first_is_gone(stage):
    old = stage.one()
    job = stage.start("a0")
    job.watch.write_text('{"n": 1}\n{"n": 2}\n')
    old.run()
    stage.wait("started", "j")

    stage.agent("a", life="2")
    assert stage.wait("ended", "j").data["codes"] == [-9]
    stage.until(lambda: stage.kinds().count("host_joined") == 2, "host")

    assert [k for k in stage.kinds() if k != "ready"][1:] == [
        *("started", "agent_lost", "record", "record", "ended", "host_lost", "host_joined")
    ]
    assert stage.agents["a"].await_order(Welcome).keep == {}
    old.disconnect()


def test_an_agent_that_comes_too_late_must_go_for_another_is_on_its_way(stage):
    a = stage.one()
    stage.start("a0")
    order = a.run()
    stage.wait("started", "j")
    began = stage.clock.monotonic()
    a.disconnect()
    stage.wait("host_lost")
    assert stage.clock.monotonic() - began > LEASE, "its ranks may have lived so long"
    stage.tried(2)
    a.read.clear()

    a.connect([known(order)])

    a.await_order(Goodbye)
    a.disconnect()
    assert not stage.fleet.slots
    stage.agent("a", life="2")
    stage.until(lambda: stage.fleet.slots, "slots")


def test_a_host_whose_agents_fail_is_tried_again_but_not_in_haste(stage):
    stage.open()
    stage.agent("b")
    stage.fail()
    stage.tried(2)
    failed = stage.clock.monotonic()
    stage.fail()
    stage.tried(3)

    assert stage.clock.monotonic() - failed >= 1.0


def test_when_no_host_has_hope_this_is_reported(stage):
    stage.transport.hosts = ("a",)
    stage.open()

    def fail_for_ever():
        for failures in range(1, 10):
            stage.tried(failures)
            stage.fail()

    with pytest.raises(JobError, match="no agent can start: host a is down"):
        fail_for_ever()


def test_where_an_agent_has_been_one_may_come_again(stage):
    """All hosts of a rack, and the scheduler's word for them, may be away for minutes."""
    stage.transport.hosts = ("a",)
    stage.open()
    stage.agent("a").disconnect()
    stage.wait("host_lost")
    for failures in range(2, 5):
        stage.tried(failures)
        stage.fail()
        stage.rest(0.05)
        stage.fleet._registry.hosts["a"].next_start = 0.0
    stage.agent("a", life="2")
    stage.until(lambda: len(stage.fleet.slots) == 2, "slots")


def test_a_host_may_be_down_for_days(stage):
    """A try each minute: after 17 hours the pause was a number that no float can hold."""
    stage.open()
    stage.agent("b")
    host = stage.fleet._registry.hosts["a"]
    host.tries = 5000
    stage.fail()
    stage.until(lambda: host.absence == "is down", "news")
    assert 0.0 < host.next_start - stage.clock.monotonic() <= host_registry._LONGEST_PAUSE


def known(start):
    """Describe a job as its agent does to whoever did not start it."""
    return KnownJob("j", start.slots, start.meet, start.watch, 0, (100,), True)


def adopt(stage):
    """Leave the address of a controller that was killed, and start another."""
    (stage.folder / "controller").mkdir()
    ControllerAddress("127.0.0.1", 1, 6, LEASE, "tag", "home").write(stage.folder)
    stage.open()
    assert read_address(stage.folder).epoch == 7
    assert not stage.fleet.settled


def bring(job, watch=None, slots=("a:0", "b:1")):
    return KnownJob(job, tuple(slots), Rendezvous("127.0.0.1", 20005, "lo"), watch, 3, (5,), True)


def test_jobs_of_a_lost_controller_are_adopted_when_all_their_hosts_are_back(stage):
    adopt(stage)
    a = stage.agent("a", jobs=[bring("j", "w.jsonl")])
    assert a.await_order(Welcome).keep == {"j": 3}
    a.write(1, 9)
    stage.wait("host_joined")
    stage.rest(0.1)
    assert "adopted" not in stage.kinds()

    b = stage.agent("b", jobs=[bring("j")])

    assert stage.wait("adopted", "j").data["slots"] == ["a:0", "b:1"]
    assert stage.wait("record", "j").data == {"n": 1}
    stage.until(lambda: stage.fleet.settled, "settled")
    assert stage.transport.started == [], "nobody else was started meanwhile"
    stage.fleet.ask("j", "stop")
    assert a.await_order(AskRank).request == "stop"
    a.end(), b.end(ranks=(1,))
    assert stage.wait("ended", "j").data["codes"] == [0, 0]
    kinds = [kind for kind in stage.kinds() if kind != "host_joined"]
    assert kinds == ["adopted", "record", "ended"]


def test_what_does_not_come_back_whole_is_dropped_before_anything_starts(stage):
    adopt(stage)
    a = stage.agent("a", jobs=[bring("j")])
    stage.wait("host_joined")
    stage.start("a1", name="new")
    stage.rest(0.1)
    assert not a.orders(StartJob, "new")

    stage.until(lambda: stage.fleet.settled, "settled")

    a.await_order(StartJob, "new")
    assert [type(m) for m in a.read if isinstance(m, DropJob | StartJob)] == [DropJob, StartJob]
    assert not {"adopted", "ended"} & set(stage.kinds())
    assert "b" in stage.transport.started


def test_a_job_that_ended_on_one_host_waits_for_the_other_to_come_back(stage):
    adopt(stage)
    a = StubAgent(stage, "a", jobs=[bring("j", "w.jsonl")])
    a.await_order(Welcome)
    a.write(1, 9)
    a.end("j", code=-9)
    a.join()
    stage.wait("host_joined")
    stage.rest(0.1)
    assert stage.kinds() == ["host_joined"]

    b = StubAgent(stage, "b", jobs=[bring("j")])
    b.await_order(Welcome)
    b.end("j", code=75, ranks=(1,))
    b.join()

    assert stage.wait("ended", "j").data["codes"] == [-9, 75]
    assert stage.kinds()[2:] == ["adopted", "record", "ended"]
    a.await_order(ForgetJob)


@pytest.mark.parametrize("successor", [False, True])
def test_the_address_goes_with_its_controller_but_that_of_a_successor_stays(
    stage, tmp_path, successor
):
    """Its agents would find it no more, and its hosts would be lost one by one."""
    stage.open()
    theirs = msgspec.structs.replace(read_address(tmp_path), epoch=7)
    if successor:
        theirs.write(tmp_path)

    stage.fleet.close()

    assert read_address(tmp_path) == (theirs if successor else None)
    assert Path(tmp_path / "controller").is_dir()


def test_a_job_for_a_host_whose_line_is_cut_waits_until_it_is_back(stage):
    """Ended at once it would be placed there again and again, until its trial counts as failed."""
    stage.open()
    a = stage.agent("a")
    stage.wait("host_joined")
    a.disconnect()
    a.read.clear()
    stage.until(lambda: not stage.fleet._registry.is_joined("a"), "cut line")
    stage.start("a0")
    stage.rest(0.1)
    assert "ended" not in stage.kinds()
    a.connect([])
    a.await_order(Welcome)
    a.join()
    assert a.await_order(StartJob, "j")


def test_a_job_whose_order_was_lost_with_the_line_ends_when_its_host_is_lost_too(stage):
    """Nobody may ever come back there: its trial would be taken to run, and its slots as taken."""
    a, b = stage.both()
    stage.start("a0")
    a.await_order(StartJob)
    a.disconnect()
    a.read.clear()
    a.connect([])
    a.await_order(Welcome)
    a.beats = False
    a.disconnect()
    ended = stage.wait("ended", "j")
    assert ended.data["away"] == ["a"]
    lost = stage.wait("host_lost")
    assert stage.events.index(ended) < stage.events.index(lost)


def test_a_foreign_host_works_like_any_other_host_and_is_started_by_its_own_allocation(stage):
    foreign = stage.foreign("n2@away")
    assert [slot.name for slot in stage.fleet.slots[4:]] == ["n2@away:0", "n2@away:1"]
    assert stage.fleet.foreign_hosts == {"n2@away"}
    files = [stage.folder / f"j.{end}" for end in ("log", "jsonl")]
    stage.fleet.start(Job("j", "work", 1, {}, *files, (stage.fleet.slots[4],)))
    foreign.run()
    stage.wait("started", "j")
    foreign.end()
    assert stage.wait("ended", "j").data["codes"] == [0]

    foreign.disconnect()
    assert stage.wait("host_lost").data["host"] == "n2@away"
    stage.rest(LEASE)
    assert stage.transport.started == ["a", "b"]


REFUSED = {
    "strange name": ("home", "../n1", hydragnn_hpo.__version__),
    "no allocation": ("home", "n1@", hydragnn_hpo.__version__),
    "name of a slot": ("home", "n1:0", hydragnn_hpo.__version__),
    "other version": ("home", "a", "0.0.0"),
    "foreign where hosts are fixed": ("", "n1@away", hydragnn_hpo.__version__),
}


@pytest.mark.parametrize(("allocation", "name", "version"), REFUSED.values(), ids=REFUSED)
def test_agents_of_strange_names_places_and_versions_are_sent_away(
    stage, allocation, name, version
):
    stage.transport.allocation = allocation
    stage.open()
    StubAgent(stage, name, version=version).await_order(Goodbye)
    assert (stage.fleet.slots, stage.fleet.foreign_hosts) == ((), set())


def test_a_foreign_host_says_when_it_leaves_and_nothing_of_ours_does(stage):
    stage.both()
    foreign = StubAgent(stage, "n1@away")
    foreign.await_order(Welcome)
    foreign.join(ends_at=2e9)
    assert stage.wait("host_leaving").data == {"host": "n1@away", "ends_at": 2e9}
    assert stage.kinds().index("host_joined") < stage.kinds().index("host_leaving")
    foreign.join(ends_at=1e9)  # Slurm asked it to end
    stage.until(lambda: stage.kinds().count("host_leaving") == 2, "the sooner end")
    assert stage.events[-1].data["ends_at"] == 1e9


def test_an_own_host_that_is_told_to_end_before_its_allocation_leaves(stage):
    """As after ``scancel``: what starts there in its last seconds would be lost."""
    stage.transport.ends_at = 2e9
    agent, _ = stage.both()
    agent.join(ends_at=2e9 - 10)
    agent.join(ends_at=1e9)
    assert stage.wait("host_leaving").data == {"host": "a", "ends_at": 1e9}
    assert stage.kinds().count("host_leaving") == 1


def test_who_holds_a_further_allocation_says_when_it_leaves(stage):
    """Its agents go on: trials there have time for their checkpoints."""
    foreign = stage.foreign("n1@away")

    announce_leaving(stage.folder, ["n1@away", "n7@away", "a"], 1e9)

    assert stage.wait("host_leaving").data == {"host": "n1@away", "ends_at": 1e9}
    stage.rest(0.1)
    assert stage.kinds().count("host_leaving") == 1
    foreign.live()
    assert not foreign.orders(Goodbye)


def test_foreign_hosts_of_a_controller_that_ends_find_its_successor(stage):
    """They are not sent away, the controller's number goes on rising, their jobs are adopted."""
    foreign = stage.foreign("n1@away")
    before = read_address(stage.folder)
    assert before.has_foreign_hosts

    stage.fleet.close()
    foreign.live()
    assert not foreign.orders(Goodbye)
    stage.agents["a"].link.wait(SECONDS)
    assert any(isinstance(m, Goodbye) for m in stage.agents["a"].link.receive())
    for agent in stage.agents.values():
        agent.disconnect()
    stage.transport = StubTransport(("n1@away",))
    stage.transport.allocation = "away"
    stage.agents.clear()
    stage.open()
    assert read_address(stage.folder).epoch == before.epoch + 1
    again = stage.agent("n1@away", jobs=[bring("j", "w.jsonl", ["n1@away:0"])])
    assert again.await_order(Welcome).keep == {"j": 3}
    stage.wait("adopted", "j")
    assert not stage.fleet.settled, "others may have run on hosts that are not ours"
    stage.until(lambda: stage.fleet.settled, "end of their leases")


def test_an_agent_that_says_farewell_leaves_nothing_to_wait_for(stage):
    a = stage.one()
    stage.start("a0")
    a.run()
    stage.wait("started", "j")

    a.say(Farewell())

    assert stage.wait("ended", "j").data["codes"] == [-9]
    assert stage.wait("host_lost").data["host"] == "a"


NONSENSE = {
    "greets twice": Hello(VERSION, hydragnn_hpo.__version__, "tag", "a", "1"),
    "slots of another host": HostSlots((Slot("b", 0, (), "cpu"),), "127.0.0.1", "lo"),
    "one slot twice": HostSlots((Slot("a", 0, (), "cpu"),) * 2, "127.0.0.1", "lo"),
    "too many processes": JobStarted("j", (1, 2, 3)),
    "rank of no job": RankEnded("j", 7, 0),
    "end of other ranks": JobEnded("j", {5: 0}, False, None, None),
    "first of no rank": JobEnded("j", {0: 0}, False, -3, None),
    "records from nowhere": NewRecords("j", [{"n": 1}], -1),
    "records from beyond": NewRecords("j", [{"n": 1}], (1 << 64) - 1),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_an_agent_that_sends_nonsense_is_sent_away_and_harms_no_other(stage, nonsense):
    a, b = stage.both()
    stage.start("a0")
    a.run()
    stage.start("b0", name="k")
    b.run("k")
    stage.wait("started", "k")

    a.say(nonsense)

    assert a.await_order(Goodbye).reason
    a.beats = False
    assert stage.wait("ended", "j").data["away"] == ["a"]
    b.end("k")
    assert stage.wait("ended", "k").data["codes"] == [0]


@pytest.mark.parametrize(
    "described",
    [
        KnownJob("j", (), Rendezvous("127.0.0.1", 20005, "lo"), None, 0, (), True),
        KnownJob("j", ("b:0",), Rendezvous("127.0.0.1", 20005, "lo"), None, 0, (5,), True),
        KnownJob("j", ("a:0",), Rendezvous("127.0.0.1", -1, "lo"), None, 0, (5,), True),
        KnownJob("j", ("a:0",), Rendezvous("127.0.0.1", 20005, "lo"), None, 0, (5, 6), True),
        KnownJob("j", ("a:0",), Rendezvous("127.0.0.1", 20005, "lo"), "w", -1, (5,), True),
    ],
)
def test_a_job_that_makes_no_sense_is_not_adopted(stage, described):
    adopt(stage)
    a = StubAgent(stage, "a", jobs=[described])
    a.await_order(Goodbye)
    stage.until(lambda: stage.fleet.settled, "settled")
    assert "adopted" not in stage.kinds()


def test_hosts_that_only_an_agent_names_get_no_requests(stage):
    adopt(stage)
    meet = Rendezvous("127.0.0.1", 20005, "lo")
    described = KnownJob("j", ("a:0", "c:0"), meet, None, 0, (5,), True, ("nowhere",))
    a = StubAgent(stage, "a", jobs=[described])
    a.join()
    a.await_order(DropJob)
    assert stage.fleet.settled
    assert "adopted" not in stage.kinds()


def test_a_host_on_which_no_agent_starts_is_named_while_the_others_work(stage):
    stage.one()
    for times in (1, 2, 3):
        stage.tried(times, "b")
        assert "hosts_absent" not in stage.kinds()
        stage.fail("b")
    assert stage.wait("hosts_absent").data == {"hosts": {"b": "is down"}, "of": 2, "waiting": 0}
    stage.agent("b")
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots of both")
    assert stage.kinds().count("hosts_absent") == 1


def test_a_host_of_which_nothing_is_heard_is_named_in_time(stage):
    stage.one()
    joined = stage.clock.monotonic()
    stage.clock.turn, stage.clock.most = 1.0, 1.0
    reason = "has no agent yet, see b.log"
    assert stage.wait("hosts_absent").data == {"hosts": {"b": reason}, "of": 2, "waiting": 1}
    assert stage.clock.monotonic() - joined > 45.0


def test_a_host_that_was_lost_is_not_called_absent(stage):
    _, b = stage.both()
    b.beats = False
    stage.wait("host_lost")
    for times in (2, 3, 4):
        stage.tried(times, "b")
        stage.fail("b")
    stage.rest(50.0)
    assert "hosts_absent" not in stage.kinds()
