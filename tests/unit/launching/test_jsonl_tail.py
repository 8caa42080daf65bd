"""Tails: each whole line once."""

from hydragnn_hpo.launching import jsonl_tail as tails
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of


def test_whole_lines_are_given_once_and_torn_ones_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = JsonlTail(path, 0)
    assert tail.read() == []

    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n"')
    assert tail.read() == [{"n": 1}, {"n": 2}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b": 3}\n")

    assert tail.read() == [{"n": 3}]
    assert tail.offset == end_of(path)


def test_a_line_that_is_no_record_is_told_as_such(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1\n[2]\n\n{"n": 3}\n')

    assert JsonlTail(path, 0).read() == [
        {"record": "unreadable", "line": '{"n": 1\n'},
        {"record": "unreadable", "line": "[2]\n"},
        {"n": 3},
    ]


def test_much_is_given_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "_LARGEST_READ", 20)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1}\n' * 10)
    tail = JsonlTail(path, 0)

    parts = []
    while part := tail.read():
        parts.append(len(part))

    assert parts == [3, 3, 3, 1]


def test_a_tail_may_begin_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')

    assert JsonlTail(path, 9).read() == [{"n": 2}]


def test_a_file_that_does_not_exist_ends_at_0(tmp_path):
    assert end_of(tmp_path / "none") == 0
