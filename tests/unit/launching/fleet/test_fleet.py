"""A fleet against agents that do what the test says: lost lines, lost hosts, lost controllers."""

import contextlib
import math
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import SECONDS

import hydragnn_hpo
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.fleet import fleet as fleet_module
from hydragnn_hpo.launching.fleet import guests, roster
from hydragnn_hpo.launching.fleet.fleet import Fleet
from hydragnn_hpo.launching.fleet.transport import News
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.wire.channel import wait
from hydragnn_hpo.launching.wire.door import DoorPlate, dial

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
        """Let others take their time: no lease ends because a thread got no turn."""
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
        told, self.news = self.news, []
        return told

    def end(self, host):
        return False

    def close(self):
        pass


class StubAgent:
    """Speaks as an agent does."""

    def __init__(self, stage, host, life="1", jobs=(), version=hydragnn_hpo.__version__):
        self.stage, self.host, self.life, self.heard = stage, host, life, []
        self.version, self.beats = version, True
        stage.agents[host] = self
        self.dial(jobs)

    def dial(self, jobs=()):
        answer = []
        plate = DoorPlate.read(self.stage.folder)
        thread = threading.Thread(target=lambda: answer.append(dial(plate, SECONDS)))
        thread.start()
        self.channel = None
        with self.stage.clock.nearly_standing():
            self.stage.until(lambda: not thread.is_alive(), "line")
        (self.channel,) = answer
        hello = {"host": self.host, "life": self.life, "version": self.version, "pid": 1}
        self.say("hello", jobs=list(jobs), **hello)

    def say(self, event, job=None, **data):
        self.channel.send({"event": event, "job": job, "time": time.time(), **data})

    def join(self):
        slots = [asdict(Slot(self.host, index, (), "cpu")) for index in range(2)]
        self.say("slots", slots=slots, address="127.0.0.1", interface="lo")

    def live(self):
        """Hear what was said, and beat."""
        if self.channel is None:
            return
        if self.beats and not self.channel.closed:
            self.say("beat", at=1.0)
        wait([self.channel], 0.0)
        self.heard += [m for m in self.channel.receive() if m["op"] != "beat"]

    def orders(self, op, job="j"):
        return [m for m in self.heard if m["op"] == op and m.get("job", job) == job]

    def await_order(self, op, job="j"):
        self.stage.until(lambda: self.orders(op, job), f"{op} of {job}")
        return self.orders(op, job)[-1]

    def run(self, job="j"):
        order = self.await_order("start", job)
        self.say("started", job, pids=[100 + place["rank"] for place in order["ranks"]])
        return order

    def end(self, job="j", code=0, ranks=(0,), first=None):
        codes = {str(rank): code for rank in ranks}
        self.say("ended", job, codes=codes, signal_sent=False, first=first, error=None)


class Stage:
    def __init__(self, folder, clock):
        self.folder, self.events, self.agents, self.clock = folder, [], {}, clock
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
        agent.await_order("init")
        agent.join()
        return agent

    def both(self):
        return self.agent("a"), self.agent("b")

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
        found = lambda: [e for e in self.events if (e.kind, e.job) == (kind, job)]  # noqa: E731
        self.until(found, f"{kind} of {job}")
        return found()[-1]

    def start(self, *slots, name="j"):
        chosen = tuple(Slot(n[0], int(n[1]), (), "cpu") for n in slots)
        files = [self.folder / f"{name}.{end}" for end in ("log", "lease", "jsonl", "control")]
        job = Job(name, "work", len(chosen), {}, *files[:3], chosen, control=files[3])
        self.fleet.start(job)
        return job


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "MARGIN_SECONDS", 0.2)
    clock = Clock()
    for module in (fleet_module, guests, roster):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=clock.monotonic, time=time.time)
        )
    stage = Stage(tmp_path, clock)
    yield stage
    for agent in stage.agents.values():
        agent.channel.close()
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
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
    stage.start("b0", "a0", "b1")

    first = b.await_order("start")
    assert [place["rank"] for place in first["ranks"]] == [0, 2]
    stage.rest()
    assert not a.orders("start")
    b.say("taken", "j")
    stage.until(lambda: len(b.orders("start")) == 2, "another port")
    again = b.run()
    other = a.run()

    assert first["meet"][1] != again["meet"][1]
    assert other["meet"] == again["meet"]
    assert stage.wait("started", "j").data["pids"] == [100, 101, 102]
    environment = other["ranks"][0]["environment"]
    assert environment["MASTER_PORT"] == str(again["meet"][1])
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert (other["watch"], other["control"]) == (None, None)
    assert again["watch"].endswith("j.jsonl")


@pytest.mark.parametrize("how", ["port taken", "line cut"])
def test_a_stop_is_not_lost_with_the_start_that_it_followed(stage, how):
    """The agent knew nothing of the job yet: it is started again, and told again to stop."""
    stage.open()
    a = stage.agent("a")
    stage.until(lambda: stage.fleet.slots, "slots")
    stage.start("a0")
    a.await_order("start")
    stage.fleet.stop("j", grace=7.0)
    a.await_order("stop")
    a.heard.clear()

    if how == "port taken":
        a.say("taken", "j")
    else:
        a.channel.close()
        a.dial([])
        a.await_order("init")
        a.join()

    a.await_order("start")
    assert a.await_order("stop")["grace"] == 7.0


def test_jobs_on_one_address_meet_at_different_ports(stage):
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")

    stage.start("a0", name="x")
    stage.start("b0", name="y")

    ports = {a.await_order("start", "x")["meet"][1], b.await_order("start", "y")["meet"][1]}
    assert len(ports) == 2


def test_one_end_is_told_once_all_ranks_everywhere_are_gone(stage):
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
    stage.start("a0", "b0")
    a.run(), b.run()
    stage.wait("started", "j")

    b.say("rank_ended", "j", rank=1, code=3)
    assert a.await_order("peer_ended")["code"] == 3
    b.end(code=3, ranks=(1,), first=1)
    b.await_order("forget")
    stage.rest()
    assert "ended" not in stage.kinds()
    a.end(code=-15, ranks=(0,), first=0)
    b.end(code=3, ranks=(1,), first=1)

    ended = stage.wait("ended", "j").data
    assert (ended["codes"], ended["first"]) == ([-15, 3], 1)
    stage.rest()
    assert stage.kinds().count("ended") == 1
    assert b.orders("drop"), "what nobody knows is dropped"


def test_records_are_told_after_the_start_and_before_the_end(stage):
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
    stage.start("a0", "b0")
    a.run()
    a.say("records", "j", records=[{"n": 1}], offset=9)
    stage.rest()
    assert "record" not in stage.kinds()
    b.run()
    a.say("records", "j", records=[{"n": 2}], offset=18)
    a.end(), b.end(ranks=(1,))
    stage.wait("ended", "j")

    assert stage.kinds()[2:] == ["started", "record", "record", "ended"]
    assert [e.data["n"] for e in stage.events if e.kind == "record"] == [1, 2]


def test_wishes_go_to_rank_0_and_stops_to_all(stage):
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
    stage.start("b0", "a0")
    b.run(), a.run()
    stage.wait("started", "j")

    stage.fleet.ask("j", "yield")
    stage.fleet.stop("j", grace=7.0)

    assert b.await_order("ask")["wish"] == "yield"
    assert [x.await_order("stop")["grace"] for x in (a, b)] == [7.0, 7.0]


def test_a_line_that_is_cut_loses_nothing(stage):
    """What the agent may not have heard is said again, and records go on where they were."""
    stage.open()
    a = stage.agent("a")
    stage.until(lambda: stage.fleet.slots, "slots")
    stage.start("a0")
    order = a.run()
    stage.start("a1", name="k")
    a.say("records", "j", records=[{"n": 1}], offset=9)
    stage.wait("record", "j")
    stage.fleet.stop("j", grace=7.0)
    a.await_order("start", "k")
    a.channel.close()
    a.heard.clear()

    brought = {k: order[k] for k in ("job", "slots", "meet", "watch")}
    a.dial([brought | {"started": True, "pids": [100], "first_offset": 0}])

    assert a.await_order("init")["keep"] == {"j": 9}
    a.join()
    assert a.await_order("stop")["grace"] == 7.0
    assert a.await_order("start", "k"), "the agent never heard of it"
    assert not a.orders("start", "j")
    a.end("j")
    stage.wait("ended", "j")
    assert not {"agent_lost", "host_lost"} & set(stage.kinds())


def test_a_silent_host_is_lost_when_its_lease_is_over_and_not_before(stage):
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
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
    assert b.await_order("peer_ended", "y")["code"] == -9
    stage.rest()
    assert "host_lost" not in stage.kinds(), "a job of it has not ended yet"
    assert [slot.host for slot in stage.fleet.slots] == ["b", "b"]
    b.end("y", code=-15)
    assert stage.wait("ended", "y").data["codes"] == [-15, -9]
    assert stage.wait("host_lost").data["host"] == "a"
    assert stage.kinds()[-2:] == ["ended", "host_lost"]
    assert stage.transport.started.count("a") >= 2


def test_another_agent_on_a_host_proves_that_all_of_the_first_is_gone(stage):
    stage.open()
    stage.agent("a")
    stage.until(lambda: stage.fleet.slots, "slots")
    job = stage.start("a0")
    job.watch.write_text('{"n": 1}\n{"n": 2}\n')
    stage.agents["a"].run()
    stage.wait("started", "j")
    old = stage.agents["a"].channel

    stage.agent("a", life="2")
    assert stage.wait("ended", "j").data["codes"] == [-9]
    stage.until(lambda: stage.kinds().count("host_joined") == 2, "host")

    assert [k for k in stage.kinds() if k != "ready"][1:] == [
        *("started", "agent_lost", "record", "record", "ended", "host_lost", "host_joined")
    ]
    assert stage.agents["a"].await_order("init")["keep"] == {}
    old.close()


def test_an_agent_that_comes_too_late_must_go_for_another_is_on_its_way(stage):
    stage.open()
    a = stage.agent("a")
    stage.until(lambda: stage.fleet.slots, "slots")
    stage.start("a0")
    order = a.run()
    stage.wait("started", "j")
    began = stage.clock.monotonic()
    a.channel.close()
    stage.wait("host_lost")
    assert stage.clock.monotonic() - began > LEASE, "its ranks may have lived so long"
    a.heard.clear()

    brought = {k: order[k] for k in ("job", "slots", "meet", "watch")}
    a.dial([brought | {"started": True, "pids": [100], "first_offset": 0}])

    a.await_order("bye")
    a.channel.close()
    assert not stage.fleet.slots
    stage.agent("a", life="2")
    stage.until(lambda: stage.fleet.slots, "slots")


def test_an_agent_of_another_version_is_sent_away(stage):
    stage.open()

    a = StubAgent(stage, "a", version="0.0.0")

    a.await_order("bye")
    assert stage.fleet.slots == ()


def test_a_host_whose_agents_fail_is_tried_again_but_not_in_haste(stage):
    stage.open()
    stage.agent("b")
    stage.transport.news = [News("a", "failed", "is down")]
    stage.until(lambda: stage.transport.started.count("a") == 2, "second try")
    failed = stage.clock.monotonic()
    stage.transport.news = [News("a", "failed", "is down")]
    stage.until(lambda: stage.transport.started.count("a") == 3, "third try")

    assert stage.clock.monotonic() - failed >= 1.0


def test_when_no_host_has_hope_this_is_said(stage):
    stage.transport.hosts = ("a",)
    stage.open()

    def fail_for_ever():
        for failures in range(1, 10):
            stage.until(lambda n=failures: len(stage.transport.started) == n, "another try")
            stage.transport.news = [News("a", "failed", "is down")]

    with pytest.raises(JobError, match="no agent can start: host a is down"):
        fail_for_ever()


def test_where_an_agent_has_been_one_may_come_again(stage):
    """All hosts of a rack, and the scheduler's word for them, may be away for minutes."""
    stage.transport.hosts = ("a",)
    stage.open()
    stage.agent("a").channel.close()
    stage.wait("host_lost")
    for failures in range(2, 5):
        stage.until(lambda n=failures: len(stage.transport.started) == n, "another try")
        stage.transport.news = [News("a", "failed", "is down")]
        stage.rest(0.05)
        stage.fleet._roster.hosts["a"].next_start = 0.0
    stage.agent("a", life="2")
    stage.until(lambda: len(stage.fleet.slots) == 2, "slots")


def test_a_host_may_be_down_for_days(stage):
    """A try each minute: after 17 hours the pause was a number that no float can hold."""
    stage.open()
    stage.agent("b")
    host = stage.fleet._roster.hosts["a"]
    host.tries = 5000
    stage.transport.news = [News("a", "failed", "is down")]
    stage.until(lambda: host.why == "is down", "news")
    assert 0.0 < host.next_start - stage.clock.monotonic() <= roster._LONGEST_PAUSE


def adopt(stage):
    """Leave the door of a controller that was killed, and open another."""
    plate = DoorPlate("127.0.0.1", 1, 6, "token", LEASE, "tag")
    plate.write(stage.folder)
    stage.open()
    assert DoorPlate.read(stage.folder).epoch == 7
    assert not stage.fleet.settled


def bring(job, watch=None, slots=("a:0", "b:1")):
    told = {"job": job, "slots": list(slots), "meet": ["127.0.0.1", 20005, "lo"], "watch": watch}
    return told | {"started": True, "pids": [5], "first_offset": 3}


def test_jobs_of_a_lost_controller_are_adopted_when_all_their_hosts_are_back(stage):
    adopt(stage)
    a = stage.agent("a", jobs=[bring("j", "w.jsonl")])
    assert a.await_order("init")["keep"] == {"j": 3}
    a.say("records", "j", records=[{"n": 1}], offset=9)
    stage.wait("host_joined")
    stage.rest(0.1)
    assert "adopted" not in stage.kinds()

    b = stage.agent("b", jobs=[bring("j")])

    assert stage.wait("adopted", "j").data["slots"] == ["a:0", "b:1"]
    assert stage.wait("record", "j").data == {"n": 1}
    stage.until(lambda: stage.fleet.settled, "settled")
    assert stage.transport.started == [], "nobody else was started meanwhile"
    stage.fleet.ask("j", "stop")
    assert a.await_order("ask")["wish"] == "stop"
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
    assert not a.orders("start", "new")

    stage.until(lambda: stage.fleet.settled, "settled")

    a.await_order("start", "new")
    assert [m["op"] for m in a.heard if m["op"] in ("drop", "start")] == ["drop", "start"]
    assert not {"adopted", "ended"} & set(stage.kinds())
    assert "b" in stage.transport.started


def test_a_job_that_ended_while_nobody_was_there_is_adopted_and_ends(stage):
    adopt(stage)
    a = StubAgent(stage, "a", jobs=[bring("j", "w.jsonl", slots=("a:0",))])
    a.await_order("init")
    a.say("records", "j", records=[{"n": 1}], offset=9)
    a.end("j")
    a.join()

    stage.wait("ended", "j")
    assert stage.kinds() == ["host_joined", "adopted", "record", "ended"]
    a.await_order("forget")


def test_a_job_that_ended_on_one_host_waits_for_the_other_to_come_back(stage):
    adopt(stage)
    a = StubAgent(stage, "a", jobs=[bring("j", "w.jsonl")])
    a.await_order("init")
    a.end("j", code=-9)
    a.join()
    stage.wait("host_joined")
    stage.rest(0.1)
    assert stage.kinds() == ["host_joined"]

    b = StubAgent(stage, "b", jobs=[bring("j")])
    b.await_order("init")
    b.end("j", code=75, ranks=(1,))
    b.join()

    assert stage.wait("ended", "j").data["codes"] == [-9, 75]
    assert stage.kinds()[2:] == ["adopted", "ended"]


def test_the_door_file_goes_with_a_controller_that_ends_well(stage, tmp_path):
    stage.open()
    assert DoorPlate.read(tmp_path)

    stage.fleet.close()

    assert DoorPlate.read(tmp_path) is None
    assert Path(tmp_path / "controller").is_dir()


def test_the_door_file_of_a_successor_stays(stage, tmp_path):
    """Its agents would find it no more, and its hosts would be lost one by one."""
    stage.open()
    theirs = replace(DoorPlate.read(tmp_path), epoch=7, token="another")
    theirs.write(tmp_path)

    stage.fleet.close()

    assert DoorPlate.read(tmp_path) == theirs


def test_a_job_for_a_host_whose_line_is_cut_waits_until_it_is_back(stage):
    """Ended at once it would be placed there again and again, until its trial counts as failed."""
    stage.open()
    a = stage.agent("a")
    stage.wait("host_joined")
    a.channel.close()
    a.heard.clear()
    stage.until(lambda: not stage.fleet._roster.is_joined("a"), "cut line")
    stage.start("a0")
    stage.rest(0.1)
    assert "ended" not in stage.kinds()
    a.dial([])
    a.await_order("init")
    a.join()
    assert a.await_order("start", "j")


def test_a_job_whose_order_was_lost_with_the_line_ends_when_its_host_is_lost_too(stage):
    """Nobody may ever come back there: its trial would be taken to run, and its slots as taken."""
    stage.open()
    a, b = stage.both()
    stage.until(lambda: len(stage.fleet.slots) == 4, "slots")
    stage.start("a0")
    a.await_order("start")
    a.channel.close()
    a.heard.clear()
    a.dial([])
    a.await_order("init")
    a.beats = False
    a.channel.close()
    ended = stage.wait("ended", "j")
    assert ended.data["away"] == ["a"]
    lost = stage.wait("host_lost")
    assert stage.events.index(ended) < stage.events.index(lost)


class StubVisitor:
    """Speaks as somebody does who holds another allocation."""

    def __init__(self, stage, named, allocation="away", **said):
        self.stage, self.heard, answer = stage, [], []
        plate = DoorPlate.read(stage.folder)
        thread = threading.Thread(target=lambda: answer.append(dial(plate, SECONDS)))
        thread.start()
        self.channel = None
        stage.agents[allocation] = self
        with stage.clock.nearly_standing():
            stage.until(lambda: not thread.is_alive(), "line")
        (self.channel,) = answer
        visit = {"version": hydragnn_hpo.__version__, "tag": plate.tag, "hosts": list(named)}
        self.say("visit", allocation=allocation, **{**visit, **said})

    def say(self, event, **data):
        self.channel.send({"event": event, **data})

    def live(self):
        if self.channel is None:
            return
        if not self.channel.closed:
            self.say("beat", at=1.0)
        wait([self.channel], 0.0)
        self.heard += self.channel.receive()

    def orders(self, op):
        return [message for message in self.heard if message["op"] == op]


def test_hosts_of_a_visitor_get_agents_from_him_and_work_like_any_other(stage):
    stage.open()
    stage.both()
    visitor = StubVisitor(stage, ["n1@away", "n2@away"])
    stage.until(lambda: visitor.orders("start"), "order to start agents")
    assert visitor.orders("start")[0]["hosts"] == ["n1@away", "n2@away"]
    assert stage.transport.started == ["a", "b"], "ours start nobody there"

    guest = stage.agent("n2@away")
    stage.until(lambda: len(stage.fleet.slots) == 6, "slots of a guest")
    assert [slot.name for slot in stage.fleet.slots[4:]] == ["n2@away:0", "n2@away:1"]
    assert stage.fleet.guests == {"n1@away", "n2@away"}
    slot = stage.fleet.slots[4]
    files = [stage.folder / f"j.{end}" for end in ("log", "lease", "jsonl")]
    stage.fleet.start(Job("j", "work", 1, {}, *files, (slot,)))
    guest.run()
    stage.wait("started", "j")
    guest.end()
    assert stage.wait("ended", "j").data["codes"] == [0]

    guest.channel.close()
    lost = stage.wait("host_lost")
    assert lost.data["host"] == "n2@away"
    asked = [host for order in visitor.orders("start") for host in order["hosts"]]
    assert asked.count("n2@away") == 2, "he is to replace it"
    assert stage.transport.started == ["a", "b"]


def test_a_visitor_that_is_gone_is_asked_nothing_and_his_agents_stay(stage):
    stage.open()
    stage.both()
    visitor = StubVisitor(stage, ["n1@away"])
    stage.agent("n1@away")
    stage.until(lambda: len(stage.fleet.slots) == 6, "slots of a guest")

    visitor.channel.close()
    stage.rest(2 * LEASE)

    assert len(stage.fleet.slots) == 6
    assert not {"agent_lost", "host_lost"} & set(stage.kinds())


def test_who_holds_other_hosts_but_cannot_serve_is_told_why(stage):
    stage.open()
    stage.both()
    wrong = [{"version": "0.0.0"}, {"tag": "other"}, {"hosts": "n1"}, {"hosts": [1]}]
    for said in wrong:
        visitor = StubVisitor(stage, ["n1@away"], **said)
        stage.until(lambda v=visitor: v.orders("bye"), "refusal")
        assert visitor.orders("bye")[0]["why"]
        visitor.channel.close()
    assert stage.fleet.guests == set()


@pytest.mark.parametrize("name", ["../n1", "n 1", "n1;x", "n1@", "", "n1@a@b", "n1:0"])
def test_a_guest_with_a_strange_name_is_sent_away(stage, name):
    stage.open()
    guest = StubAgent(stage, name)
    guest.await_order("bye")
    assert stage.fleet.guests == set()


def test_where_hosts_are_fixed_no_guest_comes_in(stage):
    stage.transport.allocation = ""
    stage.open()
    guest = StubAgent(stage, "n1@away")
    guest.await_order("bye")
    assert stage.fleet.guests == set()


def test_a_guest_says_when_it_leaves_and_nothing_of_ours_does(stage):
    stage.open()
    stage.both()
    guest = StubAgent(stage, "n1@away")
    guest.await_order("init")
    slots = [asdict(Slot("n1@away", 0, (), "cpu"))]
    where = {"slots": slots, "address": "127.0.0.1", "interface": "lo"}
    guest.say("slots", **where, ends_at=2e9)
    assert stage.wait("host_leaving").data == {"host": "n1@away", "ends_at": 2e9}
    assert stage.kinds().index("host_joined") < stage.kinds().index("host_leaving")
    guest.say("slots", **where, ends_at=1e9)  # Slurm asked it to end
    stage.until(lambda: stage.kinds().count("host_leaving") == 2, "the sooner end")
    assert stage.events[-1].data["ends_at"] == 1e9


def test_guests_of_a_controller_that_ends_find_its_successor(stage):
    """They are not told to go, the door's number goes on rising, and what they run is adopted."""
    stage.open()
    a, b = stage.both()
    guest = stage.agent("n1@away")
    stage.until(lambda: len(stage.fleet.slots) == 6, "slots of a guest")
    before = DoorPlate.read(stage.folder)
    assert before.guests

    closing = threading.Thread(target=stage.fleet.close)
    closing.start()
    for ours in (a, b):
        wait([ours.channel], SECONDS)
        ours.channel.close()
    closing.join()
    wait([guest.channel], SECONDS)
    heard = guest.channel.receive()
    assert guest.channel.closed
    guest.channel.close()
    assert "bye" not in [message["op"] for message in heard]
    stage.transport = StubTransport(())
    stage.transport.allocation, stage.transport.hosts = "away", ("n1@away",)
    stage.agents.clear()
    stage.open()
    assert DoorPlate.read(stage.folder).epoch == before.epoch + 1
    again = stage.agent("n1@away", jobs=[bring("j", "w.jsonl", ["n1@away:0"])])
    assert again.await_order("init")["keep"] == {"j": 3}
    stage.wait("adopted", "j")
    assert not stage.fleet.settled, "others may have run on hosts that are not ours"
    stage.until(lambda: stage.fleet.settled, "end of their leases")
