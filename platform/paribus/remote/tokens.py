"""Access tokens of a home folder: a name, a scope, and a hash in the file ``tokens.json``.

A token is 32 random bytes, so a single SHA-256 keeps it as well as a slow hash would: a dictionary or a list of guesses
holds none of them. The file is read again when it changes, so that a revoked token is refused from the next request on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from paribus.atomic import write_whole
from paribus.errors import RunFolderError, ServerError, did_you_mean
from paribus.home import make_home
from paribus.recipe.recipe import canonical_json
from paribus.run_folder.folder import read_json
from paribus.run_folder.json_text import field_of, fields, listed, text

Scope = Literal["read", "run"]
"""``read``: see studies and reports. ``run``: also submit, cancel and retry, which is to run programs on the server."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

FILE = "tokens.json"

_PREFIX = "paribus_"  # scanners for secrets, and `paribus.masking`, know a token by it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token as the home folder keeps it.

    Attributes:
        name: for whom or what it is.
        scope: what it allows.
        created: day, ``YYYY-MM-DD``.
        hash: see :func:`cookie_of`.
    """

    name: str
    scope: Scope
    created: str
    hash: str = field(repr=False)

    def allows(self, scope: Scope) -> bool:
        """Return whether it has a scope; ``run`` includes ``read``."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


def cookie_of(secret: str) -> str:
    """Return the value that a browser keeps in place of a token; the file has the hash of this value.

    So neither the file nor a stolen cookie gives the token, and the file alone gives no cookie.
    """
    return hashlib.sha256(f"paribus token {secret}".encode()).hexdigest()


def _hash_of(cookie: str) -> str:
    return hashlib.sha256(f"paribus cookie {cookie}".encode()).hexdigest()


class Tokens:
    """The tokens of a home folder, for many threads.

    Args:
        home: the home folder; it may not exist yet.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._read: tuple[Hashable, tuple[Token, ...]] = (None, ())

    @property
    def cookie(self) -> str:
        """Name of the cookie: one per home folder, because all ports of a machine share their cookies."""
        return f"paribus_{hashlib.sha256(str(self._home.resolve()).encode()).hexdigest()[:8]}"

    @property
    def exist(self) -> bool:
        """Whether a token was ever created here; still true if all are revoked, so that no page opens by that."""
        return (self._home / FILE).exists()

    def all(self) -> tuple[Token, ...]:
        """Return all tokens, the oldest first.

        Raises:
            ServerError: the file is damaged, or others may write it.
        """
        path = self._home / FILE
        try:
            found = path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ServerError(f"cannot read {path}: {error}") from error
        if found.st_mode & stat.S_IWOTH:
            raise ServerError(f"every user of this machine can write {path}: chmod 600 {path}, and check its tokens")
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        with self._lock:
            if self._read[0] != stamp:
                self._read = stamp, _read(path)
            return self._read[1]

    def of(self, secret: str) -> Token | None:
        """Return the token that a client has sent; ``None`` if there is none, or it was revoked."""
        return self.of_cookie(cookie_of(secret))

    def of_cookie(self, cookie: str) -> Token | None:
        """Return the token whose cookie a browser has sent.

        Each hash is compared, each in constant time, so that the time says nothing about any of them.
        """
        sent = _hash_of(cookie)
        matches = [token for token in self.all() if hmac.compare_digest(token.hash, sent)]
        return matches[0] if matches else None

    def create(self, name: str, scope: Scope) -> str:
        """Add a token, and return its secret, which is kept nowhere.

        Raises:
            ServerError: the name is taken, or is no name.
        """
        if not _NAME.fullmatch(name):
            raise ServerError(
                f"{name!r} cannot be the name of a token: at most 64 letters, digits, `.`, `_` and `-`, of which the "
                "first is a letter or a digit"
            )
        secret = _PREFIX + secrets.token_urlsafe(32)
        made = Token(name=name, scope=scope, created=f"{datetime.now(UTC):%Y-%m-%d}", hash=_hash_of(cookie_of(secret)))

        def added(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
            if any(token.name == name for token in tokens):
                raise ServerError(
                    f"there is a token `{name}` already. Choose another --name, or: paribus token revoke {name}"
                )
            return (*tokens, made)

        make_home(self._home)
        self._change(added)
        return secret

    def revoke(self, name: str) -> Token:
        """Remove a token and return what it was.

        Raises:
            ServerError: there is no such token; the message lists those that there are.
        """
        here = {token.name: token for token in self.all()}
        if name not in here:
            there = f"Tokens: {', '.join(here)}." if here else "There are no tokens."
            raise ServerError(f"there is no token `{name}`.{did_you_mean(name, here)} {there}")
        self._change(lambda tokens: tuple(token for token in tokens if token.name != name))
        return here[name]

    def _change(self, change: Callable[[tuple[Token, ...]], tuple[Token, ...]]) -> None:
        from filelock import FileLock

        path = self._home / FILE
        if self._home.stat().st_uid != os.geteuid():
            raise ServerError(
                f"{self._home} belongs to the user {_owner(self._home)}: create and revoke tokens as this user, or its "
                "dashboard cannot read them."
            )
        try:
            with FileLock(self._home / "tokens.lock"):
                _write(path, change(_read(path) if path.exists() else ()))
        except OSError as error:
            raise ServerError(f"cannot write {path}: {error}") from error


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return "of another machine"


def _write(path: Path, tokens: tuple[Token, ...]) -> None:
    write_whole(path, canonical_json({"tokens": [asdict(token) for token in tokens]}), synced=True, private=True)


def _read(path: Path) -> tuple[Token, ...]:
    if not os.access(path, os.R_OK):
        raise ServerError(f"cannot read {path}: it belongs to the user {_owner(path)}, and not to this one.")
    try:
        return tuple(_token(row) for row in listed(field_of(fields(read_json(path)), "tokens"), "tokens"))
    except (ValueError, RunFolderError) as error:
        raise ServerError(
            f"{path} is damaged: {error}. Stop the dashboard, move the file away, create the tokens again, and start "
            "it: without this file its pages ask for no token."
        ) from error


def _token(row: object) -> Token:
    raw = fields(row)
    name, scope, created, digest = (text(field_of(raw, key), key) for key in ("name", "scope", "created", "hash"))
    known = next((each for each in SCOPES if each == scope), None)
    if known is None or not _NAME.fullmatch(name) or not _HASH.fullmatch(digest):
        raise ValueError("it holds something else than tokens")
    return Token(name=name, scope=known, created=created, hash=digest)
