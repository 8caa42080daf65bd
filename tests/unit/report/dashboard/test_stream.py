"""News for open pages: written as the standard says, to a few, and never too late to end."""

import asyncio
import json

import pytest

from hydragnn_hpo.report.dashboard import stream as module
from hydragnn_hpo.report.dashboard.stream import Crowded, Stream, framed


def test_an_event_is_two_lines_and_an_empty_one_whatever_is_in_it():
    evil = "a\n\nevent: other\ndata: {}\r\x00\u2028 </script>"
    kind, data, *rest = framed("news", {"state": evil}).split(b"\n")
    assert kind == b"event: news"
    assert data.startswith(b"data: ")
    assert rest == [b"", b""]
    assert b"\r" not in data
    assert json.loads(data[6:]) == {"state": evil}


async def take(pages, count):
    async with asyncio.timeout(60):
        return [await anext(pages) for _ in range(count)]


def test_a_page_gets_the_newest_at_once_and_after_each_change():
    news = ["one"]

    async def story():
        stream = Stream(lambda: news[0])
        page = stream.listen()
        hello, first = await take(page, 2)
        for news[0] in ("two", "three"):  # nobody reads meanwhile: the last one counts
            stream.announce()
        (second,) = await take(page, 1)
        stream.close()
        assert [part async for part in page] == []
        return hello, first, second

    hello, first, second = asyncio.run(story())
    assert hello == b"retry: 2000\n\n"
    assert (first, second) == (framed("news", "one"), framed("news", "three"))


def test_silence_is_filled(monkeypatch):
    monkeypatch.setattr(module, "ALIVE_SECONDS", 0.01)

    async def story():
        return await take(Stream(lambda: 1).listen(), 4)

    assert asyncio.run(story())[2:] == [b": still here\n\n"] * 2


def test_pages_beyond_the_limit_are_refused_until_one_leaves():
    async def story():
        stream = Stream(lambda: 1)
        pages = [stream.listen() for _ in range(module.MOST_PAGES)]
        for page in pages:
            await take(page, 1)
        with pytest.raises(Crowded):
            stream.listen()
        await pages[0].aclose()
        await take(stream.listen(), 2)

    asyncio.run(story())
