"""A campaign on a terminal: it fits, whatever there is to show and however small the terminal."""

import io
import itertools
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_campaign import make_campaign
from rich.cells import cell_len
from rich.console import Console

from hydragnn_hpo import leases
from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.journal import encode, read_journal
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.campaign.status import ROWS, build_status
from hydragnn_hpo.cli import status_command as module
from hydragnn_hpo.cli.status_command import RunReader, wait
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.status_view import (
    ASCII,
    UNICODE,
    Snapshot,
    StatusPage,
    sparkline,
    summary_line,
)
from hydragnn_hpo.words import count, duration, energy, percent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("watched") / "run", trials=60, finished=False)


@pytest.fixture
def view(run, monkeypatch):
    """The campaign as if a controller were at work five seconds after its last event."""
    *_, last = read_journal(run.journal)
    monkeypatch.setattr(module, "find_controller", lambda _: "process 7 on login1")
    monkeypatch.setattr(module.time, "time", lambda: last["time"] + 5.0)
    return RunReader(run).read(rows=100)


def draw(page, width, height, signs=UNICODE):
    """Return the lines that a terminal shows."""
    encoding = "ascii" if signs is ASCII else "utf-8"
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, force_terminal=False)
    console.print(page, height=height)
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


def lines_of(view, width=80, height=24, signs=UNICODE, interval=None):
    return draw(StatusPage(view.snapshot, interval), width, height, signs)


SIZES = list(itertools.product((20, 80, 123, 250), (5, 24, 100)))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_any_terminal(view, width, height):
    for signs in (UNICODE, ASCII):
        lines = lines_of(view, width, height, signs, interval=2.0)
        assert len(lines) == height
        assert max(cell_len(line) for line in lines) <= width
        assert re.match(r"\d\d:\d\d:\d\d, every 2", lines[-1])


def test_orders_to_the_terminal_are_spelt_out(tmp_path):
    run = RunDir(tmp_path)
    made = make_campaign(tmp_path / "made", trials=12, finished=False)
    run.campaign.write_bytes(made.campaign.read_bytes())
    evil = "\x1b]0;owned\x07\x1b[2J\r\n"
    slots = [f"{evil}:0"]
    events = [
        {"event": "opened", "units": {}, "slots": slots},
        {"event": "proposed", "trial": evil, "values": {evil: evil}, "until": 3},
        {"event": "placed", "trial": evil, "attempt": 1, "width": 1, "slots": slots},
        {"event": "host_lost", "host": evil, "reason": evil},
        {"event": "host_warned", "host": evil, "reason": evil},
        {"event": "unread", "reason": evil},
        {"event": "proposed", "trial": "u", "values": {"a": 1}, "until": 3},
        {"event": "ended", "trial": "u", "outcome": "failed", "reason": evil},
    ]
    run.journal.write_bytes(
        b"".join(encode({"time": float(n), "epoch": 1, **e}) for n, e in enumerate(events))
    )
    lines = lines_of(RunReader(run).read(), 300, 50)
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[2J" in "\n".join(lines)


def test_curves_by_hand():
    assert sparkline([8.0, 4.0, 2.0, 1.0], 9, ASCII) == "#+-_"
    assert sparkline([-1.0, 0.0], 9, ASCII) == "_#", "not all positive: a linear scale"
    assert sparkline([3.0, 3.0], 9, ASCII) == "__"
    assert sparkline([100.0, 9.0, 10.0, 1.0], 2, ASCII) == "#_", "each column shows its newest"
    assert sparkline([], 9, ASCII) == sparkline([1.0], 0, ASCII) == ""


def test_the_best_so_far_is_a_running_minimum(run, view):
    slow = []
    least = math.inf
    for event in read_journal(run.journal):
        if event["event"] == "ended" and event["outcome"] in ("stopped", "completed"):
            least = min(least, event["score"])
            slow.append(least)
    assert list(view.snapshot.best_so_far) == slow
    assert len(slow) > 20


def test_a_run_that_was_begun_again_is_followed_again(tmp_path, run):
    copy = RunDir(tmp_path)
    whole = run.journal.read_bytes().splitlines(keepends=True)
    copy.campaign.write_bytes(run.campaign.read_bytes())
    copy.journal.write_bytes(b"".join(whole[:200]))
    reader = RunReader(copy)
    many = reader.read().snapshot.status
    copy.journal.write_bytes(b"".join(whole[:30]))
    few = reader.read().snapshot.status
    assert sum(few.counts.values()) < sum(many.counts.values())
    copy.journal.unlink()
    with pytest.raises(RunError, match="was removed"):
        reader.read()


def test_without_anybody_at_work_there_is_nothing_to_wait_for(run):
    assert leases.find_controller(run.path) is None
    view = RunReader(run).read()
    assert not view.goes_on
    assert (view.snapshot.course, view.snapshot.status.ends_in) == ("not running", None)


def status_of(events, trials=3, rungs=(4, 8), **more):
    state = State()
    ledger = SlotLedger()
    for event in events:
        for each in (state, ledger):
            each.apply({"epoch": 1, **event})
    return build_status(state, ledger, trials=trials, rungs=rungs, **more)


def render_status(result, course=""):
    return draw(StatusPage(Snapshot("run", result, course)), 140, 1000)


def story():
    values = {"model.conv": "egnn", "model.features": 64, "training.learning_rate": 0.004}
    slots = [f"{host}:{index}" for host in "abc" for index in range(2)]
    yield {"event": "opened", "time": 0.0, "units": {}, "slots": slots}
    for number in range(3):
        new = {"trial": f"t{number}", "values": values, "until": 4}
        yield {"event": "proposed", "time": 0.0, **new}
    place = {"event": "placed", "time": 0.0, "attempt": 1}
    yield place | {"trial": "t0", "width": 4, "slots": slots[:4]}
    yield place | {"trial": "t1", "width": 1, "slots": slots[4:5]}
    for trial in ("t0", "t1"):
        yield {"event": "first_step", "time": 1.0, "trial": trial, "seconds": 1.0}
    fields = {"objective": 0.5, "best_objective": 0.5, "joules": 1.8e6}
    fields |= {"trial": "t0", "reached": 2, "seconds": 4.0, "width": 4}
    yield {"event": "epoch", "time": 5.0, **fields}
    end = {"outcome": "stopped", "objective": 0.25, "score": 0.25, "reached": 4}
    yield {"event": "ended", "time": 6.0, "trial": "t1", **end}
    yield {"event": "host_lost", "time": 6.0, "host": "c", "reason": "silent"}


def test_what_a_person_sees():
    lines = render_status(status_of(story(), now=8.0, ends_in=200.0), "run by nobody")
    assert lines[0].split("  ")[:2] == ["run", "about 3.3 min left"]
    assert lines[0].endswith("  run by nobody")
    assert lines[1] == "training: 1 of 3 trials at rest, 1 waiting, 1 running"
    assert lines[2] == 47 * UNICODE.done + 93 * UNICODE.open, "a third of 140 columns"
    assert lines[3:6] == [
        "best     0.25 t1, epoch 4 (egnn 64 0.004)",
        "",
        "slots    4 slots on 2 hosts: 100 % train now, 58 % so far",
    ]
    assert lines[6:] == [
        "losses   12 % idle although trials wait",
        "         10 % from placed to the first step",
        "         10 % after the last epoch: prediction, last checkpoint, shutting down",
        "rungs       epochs  waiting  running  resting",
        "                 4        1        1        1  " + 26 * UNICODE.done,
        "                 8        0        0        0",
        "",
        "hosts    1 lost: c (silent)",
        "energy   1,800.0 kJ in training and validation",
        "",
        "trial  configuration  ranks  hosts  epoch                     ends in  objective  s/epoch",
        f"t0     egnn 64 0.004      4  a +1     2/4  {8 * UNICODE.done}{9 * UNICODE.open}"
        "    5.0 s     0.5000        4",
    ]


def test_the_largest_loss_is_named_in_plain_lines():
    """Two of six slots are away for 2 s of 8: 4 of 48 slot-seconds."""
    result = status_of(story(), now=8.0)
    assert summary_line(result).endswith(
        "; 4 slots on 2 hosts: 100 % train now, 58 % so far; largest loss: "
        "12 % idle although trials wait"
    )


def test_plain_data_for_json():
    plain = status_of(story(), now=8.0, ends_in=200.0).to_plain()
    assert plain["trials"] == {"running": 1, "stopped": 1, "queued": 1}
    hosts = {"here": 2, "slots": 4, "lost": {"c": "silent"}, "quarantined": {}, "excluded": 0}
    assert plain["hosts"] == hosts | {"warned": {}, "absent": {}}
    assert plain["energy"]["joules"] is plain["energy"]["best_joules"] is None
    assert plain["rungs"][0] == {"epochs": 4, "waiting": 1, "running": 1, "resting": 1}
    assert plain["best"] == {"trial": "t1", "objective": 0.25}
    assert plain["running"][0]["hosts"] == ("a", "b")
    assert sum(plain["losses"].values()) == pytest.approx(1.0)


def counted(trials, idle):
    fields = {"watts": 5400.0, "hosts": 2, "parts": ["card", "cpu"]}
    return {"event": "energy", "time": 7.0, "trials": trials, "idle": idle, **fields}


def test_what_hosts_count_is_shown_in_place_of_what_ranks_count():
    result = status_of([*story(), counted({"t0": [1.8e6, 9.0], "t1": [0.9e6, 9.0]}, 0.9e6)])
    assert (
        "energy   1.0 kWh so far (card, cpu), 25 % of it idle; 5.4 kW on 2 hosts now; t1: 900.0 kJ"
    ) in render_status(result)
    plain = result.to_plain()["energy"]
    assert (plain["joules"], plain["idle"], plain["best_joules"]) == (3.6e6, 0.9e6, 0.9e6)


def test_odd_hosts_and_unknown_energy_are_named():
    events = [event for event in story() if event["event"] != "epoch"]
    events.append({"event": "unread", "time": 7.0, "host": "a", "reason": "root only"})
    fields = {"event": "host_warned", "time": 7.0, "host": "b", "reason": "device 1 is hot"}
    result = replace(status_of([*events, fields]), excluded=1234)
    lines = render_status(result)
    assert "energy   unknown: root only" in lines
    assert "warnings b (device 1 is hot)" in lines
    assert "1,234 excluded (exclude.hosts)" in "\n".join(lines)
    assert result.to_plain()["hosts"]["warned"] == {"b": "device 1 is hot"}
    assert result.to_plain()["hosts"]["excluded"] == 1234
    assert "(exclude.hosts)" not in "\n".join(render_status(status_of(story())))


def many(running, ended):
    slots = [f"h{n // 8}:{n % 8}" for n in range(2 * running)]
    yield {"event": "opened", "time": 0.0, "units": {}, "slots": slots}
    for n in range(running + ended):
        one = {"time": 1.0, "trial": f"t{n:04d}"}
        width = 2 if n % 100 == 0 else 1
        place = slots[2 * (n % running) : 2 * (n % running) + width]
        yield {"event": "proposed", "values": {"a": n}, "until": 4, **one}
        yield {"event": "placed", "attempt": 1, "width": width, "slots": place, **one}
        if n < ended:
            yield {
                "event": "ended",
                "outcome": "stopped",
                "score": 1 / (n + 1),
                "reached": 4,
                **one,
            }


def test_many_trials_stay_a_page():
    result = status_of(many(running=500, ended=1500), trials=3000)
    lines = render_status(result)
    assert len(lines) < ROWS + 14
    assert "and 480 more; these are the widest 20" in lines
    assert [row.width for row in result.running] == [2] * 5 + [1] * 15
    assert result.best.name == "t1499"


def test_a_campaign_that_has_not_begun():
    lines = render_status(status_of([]))
    assert lines[1] == "preparing: 0 of 3 trials at rest, 0 waiting, 0 running"
    assert "slots    0 slots on 0 hosts" in lines


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        ({"event": "ending", "time": 9.0}, "stopping"),
        ({"event": "finished", "time": 9.0}, "finished"),
        (
            {"event": "promoted", "time": 9.0, "trials": ["t1"], "until": 8},
            "training the finalists",
        ),
    ],
)
def test_the_phase_of_a_campaign(event, phase):
    assert status_of([*story(), event]).phase.startswith(phase)


def test_numbers_as_people_read_them():
    times = " ".join(map(duration, (0.5, 45, 90, 200, 7200, 3 * 86400)))
    assert times == "0.5 s 45 s 1.5 min 3.3 min 2.0 h 3.0 d"
    shares = " ".join(map(percent, (0.0, 0.034, 0.0994, 0.0996, 0.5, 1.0)))
    assert shares == "0.0 % 3.4 % 9.9 % 10 % 50 % 100 %"
    assert [count(1, "host"), count(9408, "host")] == ["1 host", "9,408 hosts"]
    assert [energy(2e3), energy(7.2e6)] == ["2.0 kJ", "2.0 kWh"]


def test_a_new_size_of_the_terminal_is_drawn_once(monkeypatch):
    """Also one that came while the page was drawn: else the old size stands until the next look."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(module, "time", clock)
    console = SimpleNamespace(size=(132, 40))
    page = SimpleNamespace(drawn_for=(80, 24))
    drawn = []

    def redraw():
        drawn.append(console.size)
        page.drawn_for = console.size

    wait(redraw, page, console, 0.12)
    wait(redraw, page, console, 0.12)
    assert drawn == [(132, 40)]


@pytest.mark.parametrize("width", [80, 60])
def test_no_number_of_a_narrow_page_is_cut(view, width):
    """Words of a line that was cut are whole: they stand in the page of a wide terminal, too."""
    status = view.snapshot.status
    assert status.running
    narrow = [line.rstrip("\u2026 ").split() for line in lines_of(view, width, 100)]
    wide = {word for line in lines_of(view, 300, 100) for word in line.split()}
    numbers = {word for line in narrow for word in line if any(map(str.isdigit, word))}
    assert numbers <= wide
    assert {f"{row.objective:.4f}" for row in status.running if row.objective} <= numbers


def test_hosts_that_never_came_are_counted_and_named():
    lost = {"event": "hosts_absent", "time": 7.0, "hosts": {"n7": "has no agent, python3: gone"}}
    result = status_of([*story(), lost])
    here = result.hosts
    page = "\n".join(render_status(result))
    assert f"on {here} of {here + 1} hosts" in page
    assert "1 without an agent: n7 (python3: gone)" in page
    assert result.to_plain()["hosts"]["absent"] == {"n7": "has no agent, python3: gone"}
    joined = {"event": "host_joined", "time": 8.0, "host": "n7", "slots": ["n7:0"]}
    assert status_of([*story(), lost, joined]).absent == {}
