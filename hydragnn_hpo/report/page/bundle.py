"""plotly.js out of the installed ``plotly`` package, small enough to travel in a page."""

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files


@cache
def source() -> bytes:
    """Give the library's text, as it is run."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed() -> str:
    """Give it compressed, in base64: 2 MB rather than 4.8."""
    return pack(source())


@cache
def digest() -> str:
    """Give what a content policy calls it by."""
    return digest_of(source())


def pack(content: bytes) -> str:
    """Compress, the same content to the same text at any time, and write in base64."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def digest_of(content: bytes) -> str:
    """Give ``sha256-...`` of a script's text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"
