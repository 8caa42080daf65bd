"""The journal survives what a crash can do to its end, and refuses what it cannot."""

import errno
import json
import os
import random
import zlib

import pytest

from hydragnn_hpo.campaign import journal as module
from hydragnn_hpo.campaign.journal import (
    Journal,
    JournalFollower,
    JournalReplaced,
    decode,
    encode,
    read_journal,
)
from hydragnn_hpo.errors import RunError, StorageError

LEFT_OUT = object()
SPARE = {
    "time": 10.0, "epoch": 1, "trial": "t0", "host": "h", "slots": ["h:0"], "until": 4, "width": 1,
    "reason": "why", "outcome": "completed", "reached": 4, "objective": 0.5, "seconds": 1.0,
    "best_objective": 0.5, "values": {"x": 1}, "attempt": 1,
}  # fmt: skip


def line_of(kind, **values):
    """Return a line with a right checksum, whatever its content is."""
    event = {"event": kind, **SPARE, **values}
    return frame(json.dumps({k: v for k, v in event.items() if v is not LEFT_OUT}).encode())


def frame(body):
    return b'{"c":"%08x","e":%b}\n' % (zlib.crc32(body), body)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def filled(path, count=3):
    journal = Journal(path, 1, clock=lambda: 10.0)
    for number in range(count):
        journal.append("proposed", trial=f"t{number}", until=4, values={"x": 0.1 + number})
    journal.close()


def test_events_come_back_as_they_were_written(path):
    filled(path)
    assert [e["trial"] for e in read_journal(path)] == ["t0", "t1", "t2"]
    assert next(read_journal(path)) == {
        "event": "proposed", "time": 10.0, "epoch": 1, "trial": "t0", "until": 4,
        "values": {"x": 0.1},
    }  # fmt: skip


def test_every_torn_end_is_cut_off_before_the_next_line(path):
    filled(path)
    whole = path.read_bytes()
    second = whole[: -len(whole.splitlines(keepends=True)[-1])]
    for end in range(len(second) + 1, len(whole)):
        path.write_bytes(whole[:end])
        seen = []
        journal = Journal(path, 2, clock=lambda: 11.0, see=seen.append)
        assert [e["trial"] for e in seen] == ["t0", "t1"]
        journal.append("retried", trial="t1")
        journal.close()
        assert [e["event"] for e in read_journal(path)] == ["proposed", "proposed", "retried"]


def test_a_damaged_middle_is_an_error_that_names_the_line(path):
    filled(path)
    content = bytearray(path.read_bytes())
    content[content.index(b'"t1"') + 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"events\.jsonl: line 2 "):
        list(read_journal(path))
    with pytest.raises(RunError, match="line 2"):
        Journal(path, 2, clock=lambda: 11.0)


def test_one_flipped_bit_anywhere_is_seen():
    line = encode({"event": "ended", "objective": 0.25})
    assert decode(line) == {"event": "ended", "objective": 0.25}
    for place in range(len(line)):
        damaged = bytearray(line)
        damaged[place] ^= 1
        assert decode(bytes(damaged)) is None, damaged


def test_nan_becomes_null_because_json_has_none():
    assert decode(encode({"objective": float("nan")})) == {"objective": None}


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    journal = Journal(path, 1, clock=lambda: 10.0)
    journal.append("placed", trial="t0")
    before = path.read_bytes()
    real = os.write

    def half(descriptor, content):
        real(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", half)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.append("placed", trial="t1")
    monkeypatch.undo()
    assert path.read_bytes() == before
    journal.append("placed", trial="t2")
    assert [json.loads(line)["e"]["trial"] for line in path.read_text().splitlines()] == [
        "t0",
        "t2",
    ]


@pytest.mark.parametrize("durable", [True, False])
def test_an_event_is_on_the_disk_before_it_counts_unless_it_need_not_be(path, monkeypatch, durable):
    flushed = []
    monkeypatch.setattr(module.os, "fsync", lambda descriptor: flushed.append(path.read_bytes()))
    journal = Journal(path, 1, clock=lambda: 10.0)
    flushed.clear()
    journal.append("placed", trial="t0", durable=durable)
    assert flushed == [path.read_bytes()] * durable


EVENTS = [
    {"event": "host_joined", "time": float(n), "epoch": 1, "host": "h" * n, "slots": []}
    for n in range(40)
]
LINES = [encode(event) for event in EVENTS]


def append(path, content):
    with path.open("ab") as file:
        file.write(content)


def test_bytes_that_come_in_any_pieces_give_every_line_once(path):
    whole = b"".join(LINES)
    chance = random.Random(3)
    follower = JournalFollower(path)
    actual = []
    assert list(follower.read_new()) == []
    while whole:
        size = chance.randint(1, 90)
        append(path, whole[:size])
        whole = whole[size:]
        actual += list(follower.read_new())
    assert actual == EVENTS
    assert list(follower.read_new()) == []
    assert follower.offset == path.stat().st_size


def test_a_torn_end_that_is_cut_off_and_written_again_is_no_damage(path):
    append(path, LINES[0] + LINES[1][:20])
    follower = JournalFollower(path)
    assert list(follower.read_new()) == [EVENTS[0]]
    os.truncate(path, len(LINES[0]))
    append(path, LINES[2])
    assert list(follower.read_new()) == [EVENTS[2]]


def test_a_damaged_line_before_the_last_is_an_error(path):
    damaged = LINES[1].replace(b"host", b"hosT", 1)
    append(path, LINES[0] + damaged)
    follower = JournalFollower(path)
    assert list(follower.read_new()) == [EVENTS[0]], "the last one may be torn"
    append(path, LINES[2])
    with pytest.raises(RunError, match=rf"line 2 \(byte {len(LINES[0])}\) is damaged"):
        list(follower.read_new())


@pytest.mark.parametrize("content", [None, b"", LINES[5], b"".join(LINES[5:])])
def test_another_journal_in_its_place_or_none_is_not_taken_for_it(path, content):
    append(path, b"".join(LINES[:3]))
    follower = JournalFollower(path)
    list(follower.read_new())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(JournalReplaced):
        list(follower.read_new())


def test_a_copy_that_has_grown_is_the_same_journal(path):
    """As rsync leaves it: another file with the same beginning."""
    append(path, b"".join(LINES[:3]))
    follower = JournalFollower(path)
    list(follower.read_new())
    path.unlink()
    append(path, b"".join(LINES[:4]))
    assert list(follower.read_new()) == [EVENTS[3]]


def test_a_line_whose_end_comes_while_it_is_read_is_no_damage(path, monkeypatch):
    """``read`` meets half a line; before it looks behind it, the rest is there."""
    append(path, LINES[0] + LINES[1][:20])

    def decode(line):
        if line == LINES[1][:20]:
            append(path, LINES[1][20:] + LINES[2])
        return whole(line)

    whole = module.decode
    monkeypatch.setattr(module, "decode", decode)
    assert list(read_journal(path)) == [EVENTS[0]]


NOT_OURS = {
    "no object": (frame(b"[1, 2]"), "it is no event"),
    "no kind": (frame(b'{"time": 1.0, "epoch": 1}'), "it is no event"),
    "no JSON": (frame(b"{'time'}"), "Expecting property name"),
    "no number": (line_of("placed", time=float("nan")), "NaN is no number"),
    "nested": (frame(b"[" * 100_000 + b"]" * 100_000), "nested too deep"),
    "5,000 digits": (frame(b'{"time": ' + b"9" * 5000 + b"}"), "Exceeds the limit"),
    "a field left out": (frame(b'{"event":"retried","time":1.0,"epoch":1}'), "it lacks `trial`"),
    "another type": (line_of("placed", width="1"), "Expected `int`, got `str` - at `$.width`"),
    "null for a time": (line_of("placed", time=None), "Expected `float`, got `null`"),
    "no date": (line_of("placed", time=1e300), "its time 1e+300 is no date"),
    "unknown outcome": (line_of("ended", outcome="won"), "Invalid enum value 'won'"),
    "unknown trial": (line_of("ended", trial="t9"), "trial 't9' was not proposed before it"),
    "unknown parent": (line_of("proposed", trial="t2", parent="t7"), "trial 't7' was not proposed"),
    "unknown promoted": (line_of("promoted", trials=["t0", "t3"]), "trial 't3' was not proposed"),
    "proposed again": (line_of("proposed"), "trial 't0' is proposed for a second time"),
    "other goals": (
        line_of("ended", trial="t1", score=[1.0, 2.0]),
        "has other goals than those before",
    ),
    "no goal": (line_of("ended", score=[]), "has other goals than those before"),
    "rested without score": (line_of("rested", trial="t1"), "trial 't1' has no score before it"),
}


@pytest.mark.parametrize(("line", "expected"), NOT_OURS.values(), ids=NOT_OURS)
def test_a_line_that_is_not_ours_is_one_sentence_with_its_number(path, line, expected):
    """With the right checksum: only one who edits a journal by hand writes such a line."""
    before = [line_of("proposed"), line_of("ended"), line_of("proposed", trial="t1")]
    path.write_bytes(b"".join(before) + line)
    for read in (lambda: list(read_journal(path)), lambda: Journal(path, 2, clock=lambda: 11.0),
                 lambda: list(JournalFollower(path).read_new())):  # fmt: skip
        with pytest.raises(RunError) as caught:
            read()
        message = str(caught.value)
        offset = sum(map(len, before))
        assert message.startswith(f"{path}: line 4 (byte {offset}) was not written by this program")
        assert expected in message
        assert message.endswith("; restore the file from a copy.")
        assert len(message) - len(str(path)) <= 300


def test_what_commands_and_later_versions_write_is_read(path):
    """A command's result may hold any number; NaN is written as null; kinds may be added."""
    ended = line_of("ended", parameters=3.5, peak_bytes=1.5e9, train_seconds=None, more=7)
    path.write_bytes(line_of("proposed") + ended + line_of("invented later"))
    assert [event["event"] for event in read_journal(path)][1:] == ["ended", "invented later"]


def times(path, *rows):
    """Write events with these epochs and times; return the times that are read."""
    lines = (
        line_of("zygote_ready", import_seconds=1.0, epoch=e, time=t, trial=LEFT_OUT)
        for e, t in rows
    )
    path.write_bytes(b"".join(lines))
    return [event["time"] for event in read_journal(path)]


def test_a_jump_of_the_clock_counts_as_no_time(path):
    day = 86_400.0
    assert times(path, (1, 900.0), (1, 40.0), (1, 50.0), (1, 130.0)) == [900, 900, 910, 990]
    assert times(path, (1, 90.0), (1, 40.0), (1, 50.0)) == [90, 40, 50], "written late"
    assert times(path, (1, 5.0), (1, 5.0 + 2 * day), (1, 7.0 + 2 * day)) == [5, 5, 7]
    assert times(path, (1, 5.0), (1, 5.0 + day)) == [5, 5 + day]
    assert times(path, (1, 9 * day), (1, 8 * day), (2, day), (2, 2 * day)) == [
        9 * day,
        9 * day,
        day,  # another controller: its own clock
        2 * day,
    ]


def test_a_journal_is_read_in_pieces_as_in_one(path):
    lines = [
        line_of("zygote_ready", import_seconds=1.0, trial=LEFT_OUT, time=t)
        for t in (99.0, 3.0, 4.0, 1e6, 1e6 + 1)
    ]
    follower = JournalFollower(path)
    pieces = []
    for line in lines:
        append(path, line)
        pieces += [event["time"] for event in follower.read_new()]
    assert pieces == [99.0, 99.0, 100.0, 100.0, 101.0] == [e["time"] for e in read_journal(path)]
