"""Hides credentials in text. Errors, output and the files about the MLflow sync pass through :func:`mask`.

Two rules: the secrets that the environment names are hidden wherever they stand, and URLs, assignments, authorization
headers and tokens of `paribus token` are hidden by their form.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TextIO, cast
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
"""What stands in place of a secret."""

LEAST = 5
"""Fewest characters of a secret that is hidden wherever it stands: shorter ones are parts of words."""

_BY_NAME = re.compile(
    r"(?:^|_|PG)(?:PASSWORD|PASSWD|TOKEN|SECRET|API_?KEY|ACCESS_KEY|WEBHOOK)(?:_[A-Z0-9]+)*$", re.IGNORECASE
)
_PATHS = re.compile(r"_(?:FILE|PATH|DIR)$", re.IGNORECASE)
_WORDS = frozenset({"paribus", "mlflow", "postgres", "postgresql", "password", "localhost", "secret", "token", "false"})
_URL = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)([^\s'\"<>]+)")
_HOOK = re.compile(r"hooks?[./]|webhook", re.IGNORECASE)
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|password|passwd|api_?key|access_?key|signature|credential)|key|auth|sig|pwd)=)"
    r"(?!\.\.\.)[^&;#\s'\"<>]+",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"\b((?:ssl)?passw(?:or)?d\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s,;&'\")]+)", re.IGNORECASE)
_TOKEN = re.compile(r"\bparibus_[\w-]{43}(?![\w-])")
_HEADER = re.compile(r"\b((?:Basic|Bearer)\s+)(?=\S*[\d=])[\w+/=.~-]{12,}")


def is_secret(name: str) -> bool:
    """Whether the name of an environment variable is that of a secret, such as ``HF_TOKEN``."""
    return bool(_BY_NAME.search(name)) and not _PATHS.search(name)


def mask(text: str) -> str:
    """Return a text without passwords, tokens and addresses of webhooks."""
    for secret, shown in _known(tuple(_named())):
        text = re.sub(secret, shown, text)
    text = _URL.sub(_masked_url, text)
    text = _TOKEN.sub(HIDDEN, text)
    text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
    return _HEADER.sub(rf"\g<1>{HIDDEN}", text)


def describe(error: BaseException) -> str:
    """Return an exception's kind and the first line of its message, masked."""
    return mask(f"{type(error).__name__}: {error}".splitlines()[0])


class MaskedStream:
    """A text stream that masks what is written to it, line by line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; secrets that are split between two calls are not found."""
        self.stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write some texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unmasked() -> TextIO:
    """Return standard output as it is: for `paribus token create`, whose output is a secret."""
    return sys.stdout.stream if isinstance(sys.stdout, MaskedStream) else sys.stdout


def mask_output() -> None:
    """Mask what this process writes to standard output and standard error, tracebacks and logs included."""
    if not isinstance(sys.stdout, MaskedStream):
        sys.stdout = cast(TextIO, MaskedStream(sys.stdout))
    if not isinstance(sys.stderr, MaskedStream):
        sys.stderr = cast(TextIO, MaskedStream(sys.stderr))


def _masked_url(found: re.Match[str]) -> str:
    scheme, rest = found.groups()
    end = next((i for i, c in enumerate(rest) if c in "/?#"), len(rest))
    authority, path = rest[:end], rest[end:]
    user, at, host = authority.rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        known = name if colon or not scheme.lower().startswith("http") else HIDDEN  # https://TOKEN@host
        authority = f"{known}{f':{HIDDEN}' if colon else ''}@{host}"
    if scheme.lower().startswith("http") and _HOOK.search(rest):
        return f"{scheme}{authority}/{HIDDEN}"
    return scheme + authority + _PARAMETER.sub(rf"\g<1>{HIDDEN}", path)


def _named() -> Iterator[tuple[str, str]]:
    """Yield the variables of the environment that may hold secrets."""
    for name, value in os.environ.items():
        if value and ("://" in value or (_BY_NAME.search(name) and not _PATHS.search(name))):
            yield name, value


@lru_cache(maxsize=8)
def _known(variables: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return patterns of the secrets in these variables, the longest first, and what is shown for each."""
    secrets: set[str] = set()
    glued: set[str] = set()
    for name, value in variables:
        if "://" not in value:
            secrets.add(value)
            continue
        if _BY_NAME.search(name):  # a webhook's address is a secret as a whole
            secrets |= {value, value.split("://", 1)[1].partition("/")[2]}
        user, password, host = _userinfo(value)
        if password:
            secrets |= {
                part
                for part in (password, unquote(password), *re.split(r"[@/:?#]", password))
                if part not in (user, host)
            }
            glued |= {f"{part}@" for part in (password, unquote(password), *_tails(password))}
        secrets |= {found.group(0).partition("=")[2] for found in _PARAMETER.finditer(value)}
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= LEAST and form not in _WORDS}
    ordered = [(rf"(?<![^\W_]){re.escape(form)}(?![^\W_])", HIDDEN) for form in sorted(forms, key=len, reverse=True)]
    ordered = [(re.escape(part), f"{HIDDEN}@") for part in sorted(glued, key=len, reverse=True)] + ordered
    return tuple((re.compile(pattern), shown) for pattern, shown in ordered)


def _userinfo(url: str) -> tuple[str, str, str]:
    """Return user, password and host of a URL; the password may contain anything, also ``@``, ``/`` and ``:``."""
    rest = url.split("://", 1)[1]
    before, at, after = rest.rpartition("@")
    if not at or ":" not in before:
        return "", "", ""
    user, _, password = before.partition(":")
    authority = rest.partition("/")[0]
    if "@" in authority and "@" in rest[len(authority) :]:  # the last @ belongs to the path
        user, _, password = authority.rpartition("@")[0].partition(":")
        after = authority.rpartition("@")[2]
    return user, password, re.split(r"[:/?]", after)[0]


def _tails(password: str) -> list[str]:
    """Return what libraries take for the beginning of the host if a password contains ``@``."""
    parts = password.split("@")
    return ["@".join(parts[i:]) for i in range(1, len(parts))]


def _forms(secret: str) -> set[str]:
    plain = {secret, unquote(secret)}
    encoded = {f(text) for text in plain for f in (lambda t: quote(t, safe=""), quote, quote_plus)}
    return plain | encoded | {json.dumps(text)[1:-1] for text in plain} | {repr(text)[1:-1] for text in plain}
