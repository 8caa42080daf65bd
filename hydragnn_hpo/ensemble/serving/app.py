"""The HTTP service: what may be asked, and who may ask."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hydragnn_hpo import __version__
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.serving.answers import about
from hydragnn_hpo.ensemble.serving.asked import KINDS, AskedStructure
from hydragnn_hpo.ensemble.serving.limits import Limits, Refused
from hydragnn_hpo.ensemble.serving.worker import Worker
from hydragnn_hpo.web.tokens import Token

_CLOSING = frozenset((408, 413, 415, 429))
"""Answers that are given before the body was read: the connection ends with them."""

_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["structures"],
                "properties": {
                    "structures": {"type": "array", "items": AskedStructure.model_json_schema()}
                },
            }
        },
        "chemical/x-extxyz": {"schema": {"type": "string"}},
        "text/plain": {"schema": {"type": "string"}},
    },
}


def make_app(ensemble: Ensemble, token: Token, limits: Limits) -> FastAPI:
    """Make the service; its worker lives as long as the application does."""
    worker = Worker(ensemble, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop, limits.seconds)

    def known(request: Request) -> None:
        if not token.fits(request.headers.get("authorization")):
            raise Refused(401, "say who you are: Authorization: Bearer TOKEN.")

    app = FastAPI(
        title="hydragnn-hpo", version=__version__, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.router.lifespan_context = lifespan
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _no_such)
    app.add_exception_handler(Exception, _failed)
    front = Front(worker, limits)
    inside: dict[str, Any] = {"dependencies": [Depends(known)], "response_class": Response}
    predict: dict[str, Any] = {"openapi_extra": {"requestBody": _BODY}, **inside}
    app.add_api_route("/health", _health, methods=["GET"], response_class=Response)
    app.add_api_route("/info", front.info, methods=["GET"], **inside)
    app.add_api_route("/predict", front.predict, methods=["POST"], **predict)
    app.add_api_route("/openapi.json", front.openapi, methods=["GET"], **inside)
    return app


class Front:
    """Counts who is inside, reads bodies, and waits for answers."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        """Take who predicts, and how much is taken on."""
        self.worker = worker
        self.limits = limits
        self.inside = 0

    async def info(self) -> Response:
        """Say what is predicted, in which units, learned from what."""
        limits = self.limits
        told = about(self.worker.ensemble.manifest)
        told["limits"] = {
            "body_bytes": limits.body_bytes,
            "structures": limits.structures,
            "atoms": limits.atoms,
            "edges": limits.edges,
            "seconds": limits.seconds,
        }
        return _json(told)

    async def openapi(self, request: Request) -> Response:
        """Describe the service in OpenAPI."""
        return _json(request.app.openapi())

    async def predict(self, request: Request) -> Response:
        """Predict every head for some structures: mean, standard deviation, interval, trust."""
        kind = _kind(request)
        if self.inside >= self.limits.waiting:
            raise Refused(429, "too many requests wait already; try again in a second.")
        self.inside += 1
        try:
            content = await self._answer(request, kind)
        finally:
            self.inside -= 1
        return Response(content, media_type="application/json")

    async def _answer(self, request: Request, kind: str) -> bytes:
        """Read the body and wait for the answer, within one time for both."""
        end = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(end):
                body = await _body(request, self.limits.body_bytes)
        except TimeoutError:
            raise Refused(408, "the body did not come in time.") from None
        try:
            async with asyncio.timeout_at(end):
                return await asyncio.wrap_future(self.worker.ask(body, kind))
        except TimeoutError:
            raise Refused(
                503, f"this took more than {self.limits.seconds:g} s: send fewer structures."
            ) from None


def _kind(request: Request) -> str:
    """Give the kind of body, or refuse it."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in KINDS or request.headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, f"send one of {', '.join(KINDS)}, not compressed.")
    return KINDS[said]


async def _body(request: Request, largest: int) -> bytes:
    """Read a body that may claim any size, or none."""
    claimed = request.headers.get("content-length", "0")
    body = bytearray()
    too_large = Refused(413, f"the body is larger than {largest} bytes: send fewer structures.")
    if claimed.isdecimal() and int(claimed) > largest:
        raise too_large
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise too_large
    except ClientDisconnect:
        raise Refused(400, "the body ended before it was whole.") from None
    return bytes(body)


async def _health() -> Response:
    """Say that the service is there; nothing else, as no token is asked for."""
    return _json({"status": "ok"})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused), "another handler's error"
    headers = {"connection": "close"} if error.status in _CLOSING else {}
    headers |= {"www-authenticate": "Bearer", "connection": "close"} if error.status == 401 else {}
    headers |= {"retry-after": "1"} if error.status in (429, 503) else {}
    return _json({"error": str(error)}, error.status, headers)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "another handler's error"
    return _json({"error": error.detail}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    return _json({"error": "the service failed; its log says where."}, 500)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(value, allow_nan=False)
    return Response(content, status, headers, media_type="application/json")
