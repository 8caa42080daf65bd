"""Tails: each whole line once."""

from hydragnn_hpo.launching import jsonl_tail as tails
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of


def test_whole_lines_are_given_once_and_torn_ones_later(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    tail = JsonlTail(path, end_of(path))
    assert (tail.read(), tail.offset) == ([], 0)

    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n"')
    assert tail.read() == [{"n": 1}, {"n": 2}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b": 3}\n")

    assert tail.read() == [{"n": 3}]
    assert tail.offset == end_of(path)
    assert JsonlTail(path, 9).read() == [{"n": 2}, {"n": 3}], "a tail may begin later"
    monkeypatch.setattr(tails, "_LARGEST_READ", 27)
    path.write_bytes(b'{"n": 1}\n' * 10)
    tail = JsonlTail(path, 0)
    assert [len(tail.read()) for _ in range(5)] == [3, 3, 3, 1, 0], "much is given in parts"


def test_a_line_that_is_no_record_is_reported_as_such(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1\n[2]\n\n{"n": 3}\n')

    assert JsonlTail(path, 0).read() == [
        {"record": "unreadable", "line": '{"n": 1\n'},
        {"record": "unreadable", "line": "[2]\n"},
        {"n": 3},
    ]
