"""Tokens of a home folder: what the file holds, who gets in, and what a revocation does."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.errors import ServerError
from paribus.masking import MaskedStream, mask
from paribus.remote.tokens import FILE, Tokens, cookie_of


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """Those of an empty home folder."""
    return Tokens(tmp_path / "home")


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(tokens: Tokens, tmp_path: Path) -> None:
    """Neither the token, nor what a browser keeps of it; and the two are not the same."""
    secret = tokens.create("ana", "run")
    kept = (tmp_path / "home" / FILE).read_text()
    assert secret not in kept
    assert cookie_of(secret) not in kept
    assert cookie_of(secret) != secret
    assert stat.S_IMODE((tmp_path / "home" / FILE).stat().st_mode) == 0o600
    assert len({tokens.create(name, "run") for name in ("b", "c", "d")} | {secret}) == 4
    assert "hash" not in repr(tokens.all())


def test_a_token_is_found_by_its_secret_alone(tokens: Tokens) -> None:
    """By the whole of it; what is in the file, a part, or the cookie in its place is none."""
    secret = tokens.create("ana", "read")
    (found,) = tokens.all()
    assert tokens.of(secret) == found
    assert tokens.of_cookie(cookie_of(secret)) == found
    for wrong in ("", secret[:-1], f"{secret}x", found.hash, cookie_of(secret), "ana", "é"):
        assert tokens.of(wrong) is None
    for wrong in ("", secret, found.hash):
        assert tokens.of_cookie(wrong) is None


def test_run_includes_read_and_read_nothing_else(tokens: Tokens) -> None:
    """Two scopes, in order."""
    for scope in ("read", "run"):
        tokens.create(scope, scope)
    allowed = {token.name: [scope for scope in ("read", "run") if token.allows(scope)] for token in tokens.all()}
    assert allowed == {"read": ["read"], "run": ["read", "run"]}


def test_a_revoked_token_is_refused_at_once_by_a_process_that_knew_it(tokens: Tokens, tmp_path: Path) -> None:
    """The server is another process than the command, and it has the file in memory."""
    secret, other = tokens.create("ana", "run"), tokens.create("bob", "run")
    server = Tokens(tmp_path / "home")
    assert server.of(secret) is not None
    assert tokens.revoke("ana").scope == "run"
    assert server.of(secret) is None
    assert server.of(other) is not None
    with pytest.raises(ServerError, match=r"no token `ana`.*Tokens: bob"):
        tokens.revoke("ana")
    tokens.revoke("bob")
    assert server.exist
    with pytest.raises(ServerError, match="There are no tokens"):
        tokens.revoke("bob")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a" * 65, "x\n", "ü"])
def test_names_are_plain(tokens: Tokens, name: str) -> None:
    """They stand in logs and messages."""
    with pytest.raises(ServerError, match="cannot be the name of a token"):
        tokens.create(name, "read")
    assert not tokens.exist


def test_two_commands_at_once_lose_no_token(tokens: Tokens, tmp_path: Path) -> None:
    """Each change reads the file again under a lock."""
    started = [
        threading.Thread(target=Tokens(tmp_path / "home").create, args=(f"t{n}", "read")) for n in range(12)
    ]  # fmt: skip
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert sorted(token.name for token in tokens.all()) == sorted(f"t{n}" for n in range(12))
    with pytest.raises(ServerError, match="there is a token `t3` already"):
        tokens.create("t3", "run")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"tokens": {}}', '{"tokens": [{"name": "a"}]}', "\x00",
     '{"tokens": [{"name": "a", "scope": "root", "created": "", "hash": "' + "0" * 64 + '"}]}',
     '{"tokens": [{"name": "a", "scope": "run", "created": "", "hash": ""}]}'],
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(tokens: Tokens, tmp_path: Path, content: str) -> None:
    """It is an error, not an empty list."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / FILE).write_text(content)
    with pytest.raises(ServerError, match="is damaged"):
        tokens.of("x")
    with pytest.raises(ServerError, match="is damaged"):
        tokens.create("ana", "run")
    assert (tmp_path / "home" / FILE).read_text() == content


def test_a_file_that_others_may_write_is_refused(tokens: Tokens, tmp_path: Path) -> None:
    """Another user could have added a token."""
    secret = tokens.create("ana", "run")
    (tmp_path / "home" / FILE).chmod(0o606)
    with pytest.raises(ServerError, match="every user of this machine can write"):
        tokens.of(secret)


def test_the_commands_print_a_token_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its creation shows it; everything else that prints hides it."""
    home = ["--home", str(tmp_path / "home")]
    made = CliRunner().invoke(paribus, ["token", "create", "--scope", "run", "--name", "ana", *home])
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert re.fullmatch(r"paribus_[\w-]{43}", secret)
    listed = CliRunner().invoke(paribus, ["token", "list", *home]).output
    assert re.search(r"ana +run +20\d\d-", listed)
    assert secret not in listed
    assert CliRunner().invoke(paribus, ["token", "revoke", "ana", *home]).output.startswith("revoked ana (run).")
    assert "no tokens" in CliRunner().invoke(paribus, ["token", "list", *home]).output
    assert secret not in mask(json.dumps([f"Authorization: Bearer {secret}", {"token": secret}]))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", MaskedStream(out))
    print(secret)
    assert out.getvalue() == "***\n"


def test_tokens_are_changed_by_the_owner_of_the_home_folder_alone(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that root has written could not be read by the dashboard of another user."""
    tokens.create("ana", "run")
    before = (tmp_path / "home" / FILE).read_text()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ServerError, match="belongs to the user"):
        tokens.create("bob", "read")
    with pytest.raises(ServerError, match="belongs to the user"):
        tokens.revoke("ana")
    assert (tmp_path / "home" / FILE).read_text() == before
