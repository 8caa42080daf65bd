"""Who gets in: this computer's own browser, with a cookie that only a link of ours gives (Law 10).

The link holds a key that opens once; it sets the cookie and leads to the page, so that neither
history nor address bar keep anything that opens.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OURS = frozenset(("127.0.0.1", "localhost", "[::1]"))
"""Names under which a browser may have found us: another one is a page that had its name rebound
to this computer (DNS rebinding)."""

METHODS = ("GET", "HEAD")

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content policy of whatever says nothing else."""

ASK = "open the link that 'hydragnn-hpo dashboard' printed; each link opens once."


class Keys:
    """The key of the next link, and the cookie of those who came in."""

    def __init__(self, port: int, told: Callable[[str], None]) -> None:
        """Make both, at random.

        Args:
            port: names the cookie; browsers keep those of all ports of a computer together.
            told: called with the key of every link, the first one at once.
        """
        self.cookie = f"hydragnn_hpo_{port}"
        self._session = secrets.token_urlsafe(32)
        self._told = told
        self._renew()

    def _renew(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._told(self._key)

    def known(self, headers: Mapping[str, str]) -> bool:
        """Say whether a request carries our cookie."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return _same(found.value if found else "", self._session)

    def enter(self, request: Request) -> Response:
        """Exchange the key of a link for the cookie; the next link has another key."""
        if not self.known(request.headers):
            if not _same(request.query_params.get("key", ""), self._key):
                return refusal(403, f"this link does not open (any more): {ASK}")
            self._renew()
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


class Gate:
    """Stands before the application and refuses whatever is not a page of ours asking to read."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        """Take whom to guard."""
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refused(scope)
        await (refused or self.app)(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            return refusal(405, "this can only be read.", {"allow": ", ".join(METHODS)})
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return refusal(413, "nothing is to be sent here.", {"connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in OURS:
            return refusal(421, "this is reached as 127.0.0.1 or localhost only.")
        if scope["path"] == "/enter":
            return None
        if not self.keys.known(headers):
            return refusal(401, ASK)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not (
            scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        ):
            return refusal(403, "another page asks for this.")
        return None


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Say in one sentence why not; ours, no word of the request is in it."""
    link = '<p><a href="/">Try again</a></p>' if status in (401, 403) else ""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hydragnn-hpo</title>'
        f"<p>{sentence[0].upper()}{sentence[1:]}</p>{link}</html>"
    )
    return HTMLResponse(page, status_code=status, headers=headers)


def _name(host: str) -> str:
    """Give a host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _same(found: str, wanted: str) -> bool:
    return hmac.compare_digest(found.encode(), wanted.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("content-security-policy", CLOSED)
        await send(message)

    return sending
