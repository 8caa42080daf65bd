"""Requests to a rank: lines in an inherited pipe, and nothing at all from anything else."""

import os

import pytest

from hydragnn_hpo.rank_requests import REQUESTS, RequestReader


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    open_ends = {reading, writing}

    def close(end):
        open_ends.discard(end)
        os.close(end)

    yield reading, writing, close
    for end in open_ends:
        os.close(end)


def reader(descriptor):
    return RequestReader({REQUESTS: str(descriptor)})


def test_the_newest_whole_line_counts_and_stays(pipe):
    reading, writing, close = pipe
    requests = reader(reading)
    assert requests.read() is None, "an empty pipe keeps no training waiting"
    os.write(writing, b"stop\nyie")
    assert requests.read() == "stop"
    os.write(writing, b"ld\n")
    assert requests.read() == "yield"
    assert requests.read() == "yield"
    os.write(writing, b"\n\xff\xfe\ndance 3\n" + 9000 * b"x" + b"\n")
    assert requests.read() == "yield", "what is no known request changes nothing"
    os.write(writing, b"stop\n")
    close(writing)
    assert requests.read() == "stop", "what was written before the end counts"
    assert requests.read() == "stop"


@pytest.mark.parametrize("number", ["", "-1", "no", "987654", "9" * 30, "\u0663"])
def test_what_names_no_descriptor_is_no_request(number):
    assert reader(number).read() is None
    assert RequestReader({}).read() is None


def test_what_is_no_pipe_or_closed_meanwhile_is_left_alone(pipe, tmp_path):
    (tmp_path / "file").write_bytes(b"stop\n")
    with (tmp_path / "file").open("rb") as file:
        assert reader(file.fileno()).read() is None
        assert file.read() == b"stop\n"
    reading, _, close = pipe
    requests = reader(reading)
    close(reading)
    assert requests.read() is None
