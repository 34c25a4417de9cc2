"""The static files: styles, scripts, and plotly's script from its package; read and packed once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from paribus.report.figures import plotly_script

PLOTLY = "plotly.js"
TABLES = "tables.css"
"""The report's own file: a table looks the same on a page and in a report."""
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One static file.

    Attributes:
        kind: media type.
        text: content.
        packed: the same, compressed.
        tag: changes when the content does.
    """

    kind: str
    text: str
    packed: bytes
    tag: str


def asset_names() -> tuple[str, ...]:
    """Return the files that there are; no other name is ever looked for."""
    own = (f.name for f in files("paribus_dashboards").joinpath("static").iterdir() if f.is_file())
    return (*sorted(own), TABLES, PLOTLY)


@cache
def asset(name: str) -> Asset:
    """Return a static file.

    Raises:
        KeyError: there is none of this name.
        MissingExtra: plotly is not installed.
    """
    if name not in asset_names():
        raise KeyError(name)
    text = _text(name)
    data = text.encode()
    return Asset(
        kind=KINDS[name[name.rindex(".") :]],
        text=text,
        packed=gzip.compress(data, compresslevel=9 if name != PLOTLY else 6, mtime=0),
        tag=hashlib.blake2b(data, digest_size=6).hexdigest(),
    )


def _text(name: str) -> str:
    if name == PLOTLY:
        return plotly_script()
    if name == TABLES:
        return files("paribus.report").joinpath("templates", name).read_text()
    return files("paribus_dashboards").joinpath("static", name).read_text()
