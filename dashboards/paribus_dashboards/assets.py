"""The static files: stylesheets, scripts and icons of this package, the report's tables, and plotly's script."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from paribus.report.render.plotly import plotly_script

PLOTLY = "plotly.js"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One static file.

    Attributes:
        kind: media type.
        text: content.
        packed: content, compressed with gzip.
        tag: digest of the content, part of the file's address.
    """

    kind: str
    text: str
    packed: bytes
    tag: str


@cache
def asset_files() -> Mapping[str, Traversable | None]:
    """Return the static files by name, which is unique: those of all pages, then those of each page.

    The value is ``None`` for plotly's script, which comes from its own package. No other file is ever served.
    """
    root = files("paribus_dashboards")
    folders = [root.joinpath("static"), *sorted((f for f in root.iterdir() if f.is_dir()), key=lambda f: f.name)]
    # The report's stylesheet: a table looks the same on a page and in a report.
    found: dict[str, Traversable | None] = {
        "tables.css": files("paribus.report.render").joinpath("templates", "tables.css")
    }
    for folder in folders:
        own = (f for f in folder.iterdir() if f.name.endswith(tuple(KINDS)))
        found |= {f.name: f for f in sorted(own, key=lambda f: f.name)}
    return found | {PLOTLY: None}


@cache
def asset(name: str) -> Asset:
    """Return a static file.

    Raises:
        KeyError: there is no static file of this name.
        MissingExtra: plotly is not installed.
    """
    file = asset_files()[name]
    text = plotly_script() if file is None else file.read_text(encoding="utf-8")
    data = text.encode()
    return Asset(
        kind=KINDS[name[name.rindex(".") :]],
        text=text,
        packed=gzip.compress(data, compresslevel=9 if name != PLOTLY else 6, mtime=0),
        tag=hashlib.blake2b(data, digest_size=6).hexdigest(),
    )
