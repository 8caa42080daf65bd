"""The dashboard lets in only who may see it, keeps up with a run, and survives what goes wrong."""

import asyncio
from http.cookies import SimpleCookie
from types import SimpleNamespace

import httpx
import pytest
from made_campaign import make_campaign
from processes import until
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report import dashboard as module
from hydragnn_hpo.report.dashboard import (
    CLOSED_POLICY,
    HEADERS,
    AccessKeys,
    FactsFollower,
    LiveReport,
    make_dashboard,
)
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.page import live_script
from hydragnn_hpo.report.page_blocks import Number, Numbers, Section

PORT = 4321
BASE = f"http://127.0.0.1:{PORT}"
EVIL = "<script>alert('x')</script>"


@pytest.fixture
def door():
    """A guarded application that answers everything, and how to ask it."""
    issued_keys: list[str] = []
    keys = AccessKeys(PORT, issued_keys.append)

    async def inside(request):
        return PlainTextResponse("inside")

    routes = [Route("/enter", keys.enter), Route("/{rest:path}", inside)]
    guard = Middleware(BaseHTTPMiddleware, dispatch=keys.guard)
    app = Starlette(routes=routes, middleware=[guard])

    def ask(path="/", *, method="GET", cookie=None, content=None, **headers):
        async def asking():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                given |= {"cookie": f"{keys.cookie}={cookie}"} if cookie else {}
                return await client.request(method, path, headers=given, content=content)

        return asyncio.run(asking())

    def enter_by_link():
        answer = ask(f"/enter?key={issued_keys[-1]}")
        return SimpleCookie(answer.headers["set-cookie"])[keys.cookie].value

    return SimpleNamespace(ask=ask, issued_keys=issued_keys, keys=keys, enter=enter_by_link)


def test_a_link_gives_the_cookie_and_leads_away_from_its_key(door):
    answer = door.ask(f"/enter?key={door.issued_keys[0]}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    header = answer.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "path=/"):
        assert part in header
    assert door.issued_keys[0] not in str(answer.headers)
    cookie = SimpleCookie(answer.headers["set-cookie"])[door.keys.cookie].value
    assert len(cookie) >= 43  # 32 bytes in base64
    assert cookie != door.issued_keys[0]
    assert door.ask(cookie=cookie).text == "inside"


def test_a_link_opens_once_and_the_next_one_is_reported(door):
    door.enter()
    assert len(set(door.issued_keys)) == 2
    again = door.ask(f"/enter?key={door.issued_keys[0]}")
    assert again.status_code == 403
    assert "set-cookie" not in again.headers
    cookie = door.enter()
    assert door.ask(cookie=cookie).text == "inside", "another browser, by the new link"
    assert door.ask(f"/enter?key={door.issued_keys[0]}", cookie=cookie).status_code == 303
    assert len(door.issued_keys) == 3, "who is inside uses up nothing"


@pytest.mark.parametrize("key", ["", "%00", "%F0%9F%92%A9", "x" * 10_000])
def test_no_other_key_opens(door, key):
    assert door.ask(f"/enter?key={key}").status_code == 403
    assert door.ask(f"/enter?other={door.issued_keys[0]}").status_code == 403
    assert len(door.issued_keys) == 1, "a wrong key uses up nothing"


@pytest.mark.parametrize("path", ["/", "/news", "/sections/headline", "/nothing"])
def test_without_the_cookie_nothing_is_reported(door, path):
    for cookie in (None, "wrong", '"', "x=y; =", door.issued_keys[0]):
        answer = door.ask(path, cookie=cookie)
        assert answer.status_code == 401
        assert "inside" not in answer.text


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "GETS"])
def test_it_can_only_be_read(door, method):
    answer = door.ask(cookie=door.enter(), method=method)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), (f"127.0.0.1:{PORT}", 200), ("localhost:9", 200), ("LOCALHOST", 200)]
    + [("[::1]:80", 200), ("evil.org", 421), (f"evil.org:{PORT}", 421), ("127.0.0.1.evil.org", 421)]
    + [("127.0.0.1:80@evil.org", 421), ("", 421), ("localhost.", 421), ("127.0.0.1:x", 421)],
)
def test_a_name_that_was_rebound_to_us_is_refused(door, host, status):
    cookie = door.enter()
    assert door.ask(cookie=cookie, host=host).status_code == status
    if status != 200:
        assert door.ask(f"/enter?key={door.issued_keys[-1]}", host=host).status_code == status


@pytest.mark.parametrize(
    ("path", "site", "mode", "status"),
    [
        ("/sections/a", "same-origin", "cors", 200),
        ("/", "none", "navigate", 200),
        ("/", "cross-site", "navigate", 200),
        ("/", "cross-site", "no-cors", 403),
        ("/sections/a", "same-site", "cors", 403),
        ("/sections/a", "cross-site", "navigate", 403),
    ],
)
def test_pages_of_others_ask_in_vain(door, path, site, mode, status):
    response = door.ask(path, cookie=door.enter(), sec_fetch_site=site, sec_fetch_mode=mode)
    assert response.status_code == status


def test_every_answer_forbids_what_is_not_needed(door):
    for answer in (door.ask(), door.ask(cookie=door.enter()), door.ask(method="POST")):
        assert HEADERS.items() <= dict(answer.headers).items()
        assert answer.headers["content-security-policy"] == CLOSED_POLICY


def test_keys_are_compared_in_constant_time(door, monkeypatch):
    compared = []

    def same(one, other):
        compared.append((one, other))
        return False

    monkeypatch.setattr(module.hmac, "compare_digest", same)
    assert door.ask("/enter?key=guess").status_code == 403
    assert door.ask(cookie="guess").status_code == 401
    assert len(compared) == 3  # the cookie and the key, then the cookie


def test_a_refusal_repeats_nothing_of_the_request(door):
    for answer in (door.ask(f"/{EVIL}"), door.ask(f"/enter?key={EVIL}"), door.ask(host=EVIL)):
        assert answer.status_code in (401, 403, 421)
        assert "alert" not in answer.text


# -- keeping up ----------------------------------------------------------------------------


def get(report, path):
    """Ask the dashboard of a report, with its cookie."""
    keys = AccessKeys(PORT, lambda key: None)

    async def asking():
        transport = httpx.ASGITransport(make_dashboard(report, keys), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            cookie = f"{keys.cookie}={keys._session}"
            return await client.get(path, headers={"cookie": cookie})

    return asyncio.run(asking())


def test_a_failure_tells_nothing(run, monkeypatch):
    report = LiveReport(run, {})
    monkeypatch.setattr(report, "news", lambda: 1 / 0)
    answer = get(report, "/news")
    assert answer.status_code == 500
    assert "division" not in answer.text


def test_a_page_and_a_section_are_answered(run, lines):
    run.journal.write_bytes(b"".join(lines[:50]))
    report = LiveReport(run, {"count": count, "empty": lambda facts: None})
    assert get(report, "/sections/count").status_code == 404
    report.update()
    page = get(report, "/")
    assert '<section id="count"' in page.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    version = get(report, "/news").json()["sections"]["count"]
    answer = get(report, "/sections/count").json()
    assert answer["version"] == version
    assert answer["section"]["html"] in page.text
    assert get(report, "/sections/empty").json()["section"] is None
    assert get(report, "/sections/other").status_code == 404


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("board") / "run", trials=20)


@pytest.fixture
def run(whole, tmp_path):
    """A run directory whose journal can grow."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run_dir.campaign.write_bytes(whole.campaign.read_bytes())
    return run_dir


@pytest.fixture
def lines(whole):
    return whole.journal.read_bytes().splitlines(keepends=True)


def count(facts):
    number = Number("events", "events", len(facts.events))
    return Section("count", "Count", "How many.", (Numbers((number,)),))


def test_facts_that_grow_are_the_facts_of_one_reading(run, lines):
    growing = FactsFollower(run)
    for number in range(1, len(lines), 37):
        run.journal.write_bytes(b"".join(lines[:number]))
        results = growing.read()
        slow = read_facts(run)
        assert results.events == slow.events
        assert results.figures == slow.figures
        assert results.losses == slow.losses
        assert list(results.trials) == list(slow.trials)
        for name, trial in results.trials.items():
            assert trial.attempts == slow.trials[name].attempts
            assert trial.epochs == slow.trials[name].epochs
            assert vars(trial.trial) == vars(slow.trials[name].trial)


def test_a_damaged_line_that_is_mended_costs_no_event(run, lines):
    growing = FactsFollower(run)
    run.journal.write_bytes(b"".join([*lines[:40], b"damaged\n", *lines[41:50]]))
    with pytest.raises(RunError, match="line 41"):
        growing.read()
    run.journal.write_bytes(b"".join(lines))
    assert growing.read().events == read_facts(run).events


def test_a_section_is_made_when_there_is_something_new(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "SECTION_SHARE", 1e9)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    made, news_items = [], []
    makers = {
        "count": lambda facts: made.append(len(facts.events)) or count(facts),
        "same": lambda facts: count(SimpleNamespace(events=())),
        "none": lambda facts: None,
    }
    report = LiveReport(run, makers)
    report.update()
    for number in (50, 90):
        run.journal.write_bytes(b"".join(lines[:number]))
        for _ in range(2):
            report.update()
        news_items.append(report.news())
    assert made == [0, 50, 90]
    assert news_items[0]["about"] != news_items[1]["about"]
    before, after = (news["sections"] for news in news_items)
    assert before.keys() == after.keys() == makers.keys()
    assert [key for key in makers if before[key] != after[key]] == ["count"]


def test_a_slow_section_is_made_seldom_and_at_the_end_at_once(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    made, waiting = [], []

    def slow(facts):
        made.append(clock[0])
        clock[0] += 10.0

    report = LiveReport(run, {"slow": slow})
    for number in range(1, len(lines) - 1, len(lines) // 40):
        run.journal.write_bytes(b"".join(lines[:number]))
        report.update()
        waiting.append(report.news()["waiting"])
        clock[0] += 60.0
    assert len(made) >= 4
    assert min(b - a for a, b in zip(made, made[1:], strict=False)) >= 10.0 / module.SECTION_SHARE
    run.journal.write_bytes(b"".join(lines))
    clock[0] += 1.0
    report.update()
    assert made[-1] == clock[0] - 10.0
    assert waiting[0] == 0
    assert 1 in waiting, "what is not due yet is said to be out of date"
    assert report.news()["waiting"] == 0
    assert report.news()["state"] == "finished"


def test_a_section_that_fails_leaves_the_others_alone(run, lines, caplog):
    def broken(facts):
        raise ZeroDivisionError(EVIL)

    run.journal.write_bytes(b"".join(lines[:50]))
    report = LiveReport(run, {"broken": broken, "count": count})
    report.update()
    drawn = report.sections["broken"].rendered
    assert "could not be made" in drawn.html
    assert EVIL not in drawn.html
    assert "&lt;script&gt;" in drawn.html
    assert "ZeroDivisionError: " in caplog.text
    assert report.sections["count"].version


@pytest.fixture
def live(run, lines, monkeypatch):
    """A live report at work in its thread."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.01)
    run.journal.write_bytes(b"".join(lines[:50]))
    report = LiveReport(run, {"count": count})
    report.thread.start()
    yield report
    report.stop()
    report.thread.join(timeout=60)
    assert not report.thread.is_alive()


def wait_for(report, state):
    until(lambda: state in report.news()["state"], f"word of {state}")


def test_what_happens_to_a_run_is_reported(live, run, lines, tmp_path):
    wait_for(live, "not running")
    run.journal.write_bytes(b"".join(lines[:50]) + b"rubbish\n" + lines[50])
    wait_for(live, "is damaged")
    run.path.rename(tmp_path / "aside")
    wait_for(live, "holds no campaign")
    (tmp_path / "aside").rename(run.path)
    run.journal.write_bytes(b"".join(lines[:10]))  # begun again
    wait_for(live, "not running")
    until(lambda: len(live.facts.events) == 10, "fresh events")
    assert sorted(path.name for path in run.path.rglob("*")) == ["campaign.toml", "events.jsonl"]


def test_a_journal_that_is_not_there_yet_is_waited_for(run, lines, monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    report = LiveReport(run, {"count": count})
    report.update()
    assert report.news()["state"] == "not begun"
    run.journal.write_bytes(b"".join(lines[:50]) + lines[50][:30])
    report._read_due = 0.0
    report.update()
    assert report.news()["state"] == "not running"
    assert len(report.facts.events) == 50


def test_the_badge_counts_no_redraws_and_has_one_clock():
    script = live_script()
    assert "to come" not in script
    assert "toLocaleTimeString" not in script
    assert "UTC" in script
