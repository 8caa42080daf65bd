"""The service answers like ``Ensemble.predict``, and refuses everything else with a sentence."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import SECONDS, until
from starlette.applications import Starlette

from hydragnn_hpo.cli.serve_command import serve as command
from hydragnn_hpo.ensemble import serve
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.serve import Limits, PredictService, PredictWorker, bound_pairs, make_app
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.http_service import Token, is_loopback, listen

TOKEN = Token("a-token-for-tests-only", made=False)
WATER = {
    "id": "water",
    "symbols": ["O", "H", "H"],
    "positions": [[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]],
}
CRYSTAL = {
    "numbers": [6, 8],
    "positions": [[0, 0, 0], [1.9, 1.9, 1.9]],
    "cell": [[3.8, 0, 0], [0, 3.8, 0], [0, 0, 3.8]],
    "pbc": True,
}


@pytest.fixture(scope="session")
def ensemble(built_zip):
    return Ensemble.load(built_zip)


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {TOKEN.text}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service", headers=headers, timeout=120
        ) as client:
            yield client


@pytest.fixture
def call(ensemble):
    """Run some calls against a service with the limits given, and give their result."""

    def run(ask: Callable[[httpx.AsyncClient], Awaitable[Any]], **limits: Any) -> Any:
        async def inside() -> Any:
            async with client_of(make_app(ensemble, TOKEN, Limits(**limits))) as client:
                return await ask(client)

        return asyncio.run(inside())

    return run


def post(*structures: Any, **more: Any) -> Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]:
    return lambda client: client.post("/predict", json={"structures": structures}, **more)


def raw(body: Any, kind: str = "application/json") -> Callable[..., Awaitable[httpx.Response]]:
    return lambda client: client.post("/predict", content=body, headers={"content-type": kind})


def errors_of(answer: httpx.Response) -> list[str | None]:
    assert answer.status_code == 200, answer.text
    return [entry["error"] for entry in answer.json()["structures"]]


def refusal(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/json"
    answers = answer.json()
    assert list(answers) == ["error"]
    assert "Traceback" not in answer.text
    return str(answers["error"])


def test_answers_equal_those_of_the_ensemble(call, ensemble):
    answer = call(post(WATER, CRYSTAL))
    several = [
        Atoms(WATER["symbols"], WATER["positions"]),
        Atoms([6, 8], CRYSTAL["positions"], cell=CRYSTAL["cell"], pbc=True),
    ]
    wanted = ensemble.predict(several)
    first, second = answer.json()["structures"]
    assert (first["id"], second["id"]) == ("water", "1")
    assert [first["trust"], second["trust"]] == list(wanted.trust)
    for part in ("mean", "std", "std_epistemic", "lo90", "hi90"):
        energy, charge = (getattr(wanted.heads[name], part)[:, 0] for name in ("energy", "charge"))
        actual = [entry["heads"]["energy"][part] for entry in (first, second)]
        np.testing.assert_allclose(actual, energy, rtol=1e-5, atol=1e-6)
        atoms = first["heads"]["charge"][part] + second["heads"]["charge"][part]
        np.testing.assert_allclose(atoms, charge, rtol=1e-5, atol=1e-6)
    assert answer.json()["units"] == {"energy": "eV/atom", "charge": "e"}


def test_extxyz_says_the_same_as_json(call):
    text = "3\nProperties=species:S:1:pos:R:3 id=water\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n"
    from_json = call(post(WATER)).json()
    for kind in ("chemical/x-extxyz", "text/plain; charset=utf-8"):
        assert call(raw(text, kind)).json() == from_json


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"positions": [[0, 0, 0], [float("nan"), 0, 0], [0, 1, 0]]}, "finite number"),
        ({"positions": [[0, 0, 0], [0, 0, 0], [0, 1, 0]]}, "at one place"),
        ({"positions": [[0, 0, 0]]}, "3 elements and 1 positions"),
        ({"positions": "here"}, "write a list"),
        ({"symbols": ["O", "H", "Qq"]}, "unknown element at atom 3"),
        ({"numbers": [8, 1, 1]}, "give one of them"),
        ({"symbols": None, "numbers": [8, 1, 10**30]}, "unknown element at atom 3"),
        ({"symbols": None, "numbers": [8, 1, True]}, "write a whole number"),
        ({"cell": [[9, 0, 0], [0, 9, 0], [0, 0, 9]]}, "say with pbc"),
        ({"cell": [[9, 0, 0], [9, 0, 0], [0, 0, 9]], "pbc": True}, "span no volume"),
        ({"pbc": [True, True]}, "pbc"),
        ({"symbols": [], "positions": []}, "no atoms"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"id": 5}, "write a text"),
        ({"positions": [[0, 0, 0], [1e308, 0, 0], [0, 1, 0]]}, "angstrom wide"),
        ({"positions": [[0, 0, 0], [10**400, 0, 0], [0, 1, 0]]}, "write a number"),
    ],
)
def test_a_bad_structure_has_its_reason_and_spoils_no_other(call, change, reason):
    body = json.dumps({"structures": [WATER, {**WATER, **change}, WATER, 5]})
    answer = call(raw(body))
    before, bad, after, number = errors_of(answer)
    assert (before, after, number) == (None, None, "structure 3 is no JSON object; send one.")
    assert bad is not None
    assert reason in bad
    assert "heads" not in answer.json()["structures"][1]


@pytest.mark.parametrize(("method", "path"), [("GET", "/info"), ("POST", "/predict")])
def test_without_the_token_nothing_is_reported_but_health(call, method, path):
    for header in ("", "Bearer wrong"):
        answer = call(lambda c, h=header: c.request(method, path, headers={"authorization": h}))
        assert answer.status_code == 401
        assert "Bearer" in refusal(answer)
    answer = call(lambda c: c.get("/health", headers={"authorization": ""}))
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/", "/predict/../../etc/passwd"])
def test_there_are_no_other_pages(call, path):
    answer = call(lambda c: c.get(path))
    assert answer.status_code in (404, 405)
    refusal(answer)


def test_info_names_heads_units_and_limits(call):
    report = call(lambda c: c.get("/info"), structures=7).json()
    assert report["heads"]["charge"]["unit"] == "e"
    assert report["elements"] == [1, 6, 7, 8]
    assert report["limits"]["structures"] == 7
    assert "positions" in report["structure"]["properties"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("{", "application/json", 400),
        (b"\xff\xfe\x00", "application/json", 400),
        ('{"structures": ' + "[" * 200_000, "application/json", 400),
        ('{"structures": [' + "9" * 5000 + "]}", "application/json", 400),
        ("[]", "application/json", 400),
        ('{"structures": []}', "application/json", 400),
        ('{"structures": [], "more": 1}', "application/json", 400),
        ("structures=1", "application/x-www-form-urlencoded", 415),
        ("{}", "", 415),
        ("1\nfoo\nH 0 0 0\nnot a number\n", "text/plain", 400),
        ("999999999\n\nH 0 0 0\n", "text/plain", 400),
        (b"\xff", "text/plain", 400),
        ("\n\n", "text/plain", 400),
    ],
)
def test_a_body_that_is_no_use_is_refused(call, body, kind, status):
    answer = call(raw(body, kind))
    assert answer.status_code == status, answer.text
    refusal(answer)


def test_a_body_is_refused_by_what_it_claims(call):
    answer = call(raw(b" " * 2000), body_bytes=1000)
    assert answer.status_code == 413
    assert "1000 bytes" in refusal(answer)
    assert call(post(WATER, headers={"content-encoding": "gzip"})).status_code == 415


def test_a_body_without_a_length_is_counted_while_it_comes(call):
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield b" " * 1000

    answer = call(raw(endless()), body_bytes=100_000)
    assert answer.status_code == 413
    # Not 10,000: reading ended one piece beyond the limit. (httpx asks for one piece more.)
    assert taken <= 103


def unwanted(*_: Any, **__: Any) -> None:
    raise AssertionError("it would take long")


def test_what_is_too_much_is_counted_and_not_looked_at(call, monkeypatch):
    monkeypatch.setattr(serve, "parse_config", unwanted)
    monkeypatch.setattr(serve, "graph_of", unwanted)
    assert call(post(*[WATER] * 4), structures=3).status_code == 413
    limit = "structure 0 has 3 atoms, the limit is 2; send a smaller one."
    assert errors_of(call(post(WATER), atoms=2)) == [limit]
    text = "3\n\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n"
    assert errors_of(call(raw(text, "text/plain"), atoms=2)) == [limit]


def test_many_images_are_refused_before_they_are_sought(call, monkeypatch):
    monkeypatch.setattr(serve, "graph_of", unwanted)
    rng = np.random.default_rng(0)
    crowd = {
        "numbers": [1] * 1500,
        "positions": rng.uniform(0, 0.3, (1500, 3)).tolist(),
        "cell": (0.3 * np.eye(3)).tolist(),
        "pbc": True,
    }
    (error,) = errors_of(call(post(crowd)))
    assert error is not None
    assert "too many for so small a cell" in error


def test_a_graph_with_too_many_edges_is_refused(call):
    (error,) = errors_of(call(post(CRYSTAL), edges=10))
    assert error is not None
    assert "the limit is 10" in error


@pytest.mark.parametrize("info", ["occupancy=5", 'occupancy="{}"', "units=[", "a=_JSON [1"])
def test_strange_comments_do_no_harm(call, info):
    text = f"1\n{info} Properties=species:S:1:pos:R:3\nH 0 0 0\n"
    answer = call(raw(text + "1\n\nH 0 0 0\n", "text/plain"))
    assert answer.status_code == 200
    assert answer.json()["structures"][1]["error"] is None


def test_names_that_are_no_utf8_come_back(call):
    answer = call(raw(json.dumps({"structures": [{**WATER, "id": "\ud800"}]})))
    assert answer.json()["structures"][0]["id"] == "\ud800"


@pytest.fixture
def came(monkeypatch):
    """Note each request that waits for its answer."""
    noted: list[str] = []
    submit = PredictWorker.submit

    def record_request(self: PredictWorker, body: bytes, kind: str) -> Any:
        answer = submit(self, body, kind)
        noted.append(kind)
        return answer

    monkeypatch.setattr(PredictWorker, "submit", record_request)
    return noted


def test_requests_that_wait_are_answered_together_and_equal(call, ensemble, came, monkeypatch):
    sizes: list[int] = []
    whole = Ensemble.predict

    def counted(self: Ensemble, columns: Any, indices: Any) -> Any:
        sizes.append(len(indices))
        until(lambda: len(came) == 12, "all requests")
        return whole(self, columns, indices)

    async def many(client: httpx.AsyncClient) -> list[Any]:
        some = [post(WATER if k % 2 else CRYSTAL)(client) for k in range(12)]
        return [answer.json()["structures"][0]["heads"] for answer in await asyncio.gather(*some)]

    alone = {
        k: call(post(s)).json()["structures"][0]["heads"] for k, s in ((1, WATER), (0, CRYSTAL))
    }
    came.clear()
    monkeypatch.setattr(Ensemble, "predict", counted)
    for number, heads in enumerate(call(many)):
        for name, parts in alone[number % 2].items():
            for part, value in parts.items():
                np.testing.assert_allclose(heads[name][part], value, rtol=1e-5, atol=1e-6)
    assert sum(sizes) == 12
    assert max(sizes) >= 6


@pytest.fixture
def gate(monkeypatch):
    """Hold every prediction until it is set."""
    opened = threading.Event()
    whole = Ensemble.predict

    def held(self: Ensemble, columns: Any, indices: Any) -> Any:
        opened.wait(600)
        return whole(self, columns, indices)

    monkeypatch.setattr(Ensemble, "predict", held)
    return opened


def test_who_comes_when_all_places_are_taken_is_sent_away(call, gate, came):
    async def crowd(client: httpx.AsyncClient) -> tuple[httpx.Response, list[httpx.Response]]:
        inside = [asyncio.create_task(post(WATER)(client)) for _ in range(3)]
        async with asyncio.timeout(SECONDS):
            while len(came) < 3:
                await asyncio.sleep(0.01)
        one_more = await post(WATER)(client)
        gate.set()
        return one_more, await asyncio.gather(*inside)

    one_more, inside = call(crowd, waiting=3)
    assert one_more.status_code == 429
    assert one_more.headers["retry-after"] == "1"
    assert [answer.status_code for answer in inside] == [200, 200, 200]


def test_what_takes_too_long_is_given_up_and_the_next_is_answered(call, gate, monkeypatch):
    given: list[Limits] = []
    make = PredictService.__init__

    def made(self: PredictService, worker: PredictWorker, token: Token, limits: Limits) -> None:
        given.append(limits)
        make(self, worker, token, limits)

    async def two(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        late = await post(WATER)(client)
        gate.set()
        object.__setattr__(given[0], "seconds", 600.0)  # what comes now has time
        return late, await post(WATER)(client)

    monkeypatch.setattr(PredictService, "__init__", made)
    late, after = call(two, seconds=2.0)
    assert late.status_code == 503
    assert "2 s" in refusal(late)
    assert after.status_code == 200


def test_a_body_that_does_not_come_is_given_up(call):
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(3600)

    answer = call(raw(slow()), seconds=0.5)
    assert answer.status_code == 408
    refusal(answer)


def test_where_the_models_fail_each_structure_is_tried_alone(call, monkeypatch, caplog):
    whole = Ensemble.predict

    def fragile(self: Ensemble, columns: Any, indices: Any) -> Any:
        if (columns.num_nodes()[indices] == 3).any():
            raise RuntimeError("secret words of a client")
        return whole(self, columns, indices)

    monkeypatch.setattr(Ensemble, "predict", fragile)
    answer = call(post(CRYSTAL, WATER))
    good, bad = errors_of(answer)
    assert good is None
    assert bad == "the models failed on it; the service's log says where."
    assert "secret" not in answer.text + caplog.text


def test_an_unexpected_error_shows_nothing(call, monkeypatch, caplog):
    def broken(*_: Any) -> None:
        raise LookupError("secret words")

    monkeypatch.setattr(Ensemble, "predict", broken)
    answer = call(post(WATER))
    assert answer.status_code == 500
    assert "secret" not in refusal(answer) + caplog.text
    assert "LookupError in broken" in caplog.text


def test_what_is_not_finite_becomes_null(call, ensemble):
    head = ensemble.members[0].model.heads["energy"]
    parameter = next(head.parameters())
    kept = parameter.data.clone()
    try:
        parameter.data.fill_(float("nan"))
        answer = call(post(WATER))
    finally:
        parameter.data.copy_(kept)
    assert "NaN" not in answer.text
    (entry,) = answer.json()["structures"]
    assert entry["heads"]["energy"]["mean"] is None
    assert "energy is not finite" in entry["trust"]


# -- the command ---------------------------------------------------------------------------


def test_others_get_in_only_with_a_chosen_token_and_over_a_warning(built_zip, monkeypatch, capsys):
    monkeypatch.delenv("HYDRAGNN_HPO_TOKEN", raising=False)
    command(built_zip, dry_run=True)
    assert capsys.readouterr().err == "", "on loopback"
    for host in ("0.0.0.0", "example.org"):
        with pytest.raises(ConfigError, match="choose a token"):
            command(built_zip, host=host, dry_run=True)
    monkeypatch.setenv("HYDRAGNN_HPO_TOKEN", "a-token-for-tests-only")
    command(built_zip, host="0.0.0.0", dry_run=True)
    captured = capsys.readouterr()
    assert "clear text" in captured.err
    assert "would serve" in captured.out
    assert "energy [eV/atom]" in captured.out
    assert "a-token" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("localhost.evil.org", False)],
)
def test_loopback_is_known(host, inside):
    assert is_loopback(host) is inside


def test_a_port_in_use_is_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)


def test_pairs_are_bounded_by_the_images_along_the_heights_of_the_cell():
    assert bound_pairs(7, np.zeros((3, 3)), (False, False, False), 5.0) == 49
    # a = 2, cutoff 5: 2 * 5 / 2 + 1 = 6 images along each of two directions
    assert bound_pairs(3, 2.0 * np.eye(3), (True, True, False), 5.0) == pytest.approx(9 * 36)
    flat = np.array([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
    assert bound_pairs(1, flat, (True, True, True), 5.0) == np.inf


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(1.0, 6.0), st.integers(0, 7))
def test_there_are_never_more_edges_than_the_bound(seed, atoms, cutoff, mask):
    rng = np.random.default_rng(seed)
    cell = 3.0 * np.eye(3) + rng.uniform(-1.2, 1.2, (3, 3))
    pbc = [bool(mask & bit) for bit in (1, 2, 4)]
    structure = Atoms("H" * atoms, rng.uniform(-4, 8, (atoms, 3)), cell=cell, pbc=pbc)
    edges = len(neighbor_list("i", structure, cutoff))
    assert edges <= bound_pairs(atoms, cell, pbc, cutoff) + 1e-9
