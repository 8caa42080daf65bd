"""Who gets into a dashboard, and who does not (Law 10)."""

import asyncio
from http.cookies import SimpleCookie
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hydragnn_hpo.report.dashboard import gate as module
from hydragnn_hpo.report.dashboard.gate import CLOSED, HEADERS, Gate, Keys

PORT = 4321
BASE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def door():
    """A guarded application that answers everything, and how to ask it."""
    told: list[str] = []
    keys = Keys(PORT, told.append)

    async def inside(request):
        return PlainTextResponse("inside")

    async def enter(request):
        return keys.enter(request)

    routes = [Route("/enter", enter), Route("/{rest:path}", inside)]
    app = Gate(Starlette(routes=routes), keys)

    def ask(path="/", *, method="GET", cookie=None, content=None, **headers):
        async def asking():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                given |= {"cookie": f"{keys.cookie}={cookie}"} if cookie else {}
                return await client.request(method, path, headers=given, content=content)

        return asyncio.run(asking())

    def enter_as_told():
        answer = ask(f"/enter?key={told[-1]}")
        return SimpleCookie(answer.headers["set-cookie"])[keys.cookie].value

    return SimpleNamespace(ask=ask, told=told, keys=keys, enter=enter_as_told)


def test_a_link_gives_the_cookie_and_leads_away_from_its_key(door):
    answer = door.ask(f"/enter?key={door.told[0]}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    said = answer.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "path=/"):
        assert part in said
    assert door.told[0] not in str(answer.headers)
    cookie = SimpleCookie(answer.headers["set-cookie"])[door.keys.cookie].value
    assert len(cookie) >= 43  # 32 bytes in base64
    assert cookie != door.told[0]
    assert door.ask(cookie=cookie).text == "inside"


def test_a_link_opens_once_and_the_next_one_is_told(door):
    door.enter()
    assert len(set(door.told)) == 2
    again = door.ask(f"/enter?key={door.told[0]}")
    assert again.status_code == 403
    assert "set-cookie" not in again.headers
    assert door.ask(cookie=door.enter()).text == "inside", "another browser, by the new link"


def test_who_is_inside_may_use_an_old_link(door):
    cookie = door.enter()
    assert door.ask(f"/enter?key={door.told[0]}", cookie=cookie).status_code == 303
    assert len(door.told) == 2


@pytest.mark.parametrize("key", ["", "x", "%00", "%F0%9F%92%A9", "x" * 10_000])
def test_no_other_key_opens(door, key):
    assert door.ask(f"/enter?key={key}").status_code == 403
    assert door.ask(f"/enter?other={door.told[0]}").status_code == 403
    assert len(door.told) == 1, "a wrong key uses up nothing"


@pytest.mark.parametrize("path", ["/", "/news", "/sections/headline", "/report.html", "/nothing"])
def test_without_the_cookie_nothing_is_told(door, path):
    for cookie in (None, "wrong", '"', "x=y; =", door.told[0]):
        answer = door.ask(path, cookie=cookie)
        assert answer.status_code == 401
        assert "inside" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "GETS"])
def test_it_can_only_be_read(door, method):
    answer = door.ask(cookie=door.enter(), method=method)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert "access-control-allow-origin" not in answer.headers


def test_nothing_can_be_sent(door):
    assert door.ask(cookie=door.enter(), content=b"x").status_code == 413


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
        assert door.ask(f"/enter?key={door.told[-1]}", host=host).status_code == status


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
    asked = door.ask(path, cookie=door.enter(), sec_fetch_site=site, sec_fetch_mode=mode)
    assert asked.status_code == status


def test_every_answer_forbids_what_is_not_needed(door):
    for answer in (door.ask(), door.ask(cookie=door.enter()), door.ask(method="POST")):
        assert HEADERS.items() <= dict(answer.headers).items()
        assert answer.headers["content-security-policy"] == CLOSED


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
    evil = "<script>alert(1)</script>"
    for answer in (door.ask(f"/{evil}"), door.ask(f"/enter?key={evil}"), door.ask(host=evil)):
        assert evil not in answer.text
        assert "alert" not in answer.text
