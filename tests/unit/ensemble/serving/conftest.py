"""A client of a service that runs in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.serving.app import make_app
from hydragnn_hpo.ensemble.serving.limits import Limits
from hydragnn_hpo.web.tokens import Token

TOKEN = Token("a-token-for-tests-only", made=False)


@pytest.fixture(scope="session")
def ensemble(built_zip: Path) -> Ensemble:
    return Ensemble.load(built_zip)


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {TOKEN.text}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service", headers=headers, timeout=120
        ) as client:
            yield client


Call = Callable[..., Any]


@pytest.fixture
def call(ensemble: Ensemble) -> Call:
    """Run some calls against a service with the limits given, and give their result."""

    def run(ask: Callable[[httpx.AsyncClient], Awaitable[Any]], **limits: Any) -> Any:
        async def inside() -> Any:
            async with client_of(make_app(ensemble, TOKEN, Limits(**limits))) as client:
                return await ask(client)

        return asyncio.run(inside())

    return run
