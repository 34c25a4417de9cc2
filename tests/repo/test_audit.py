"""The audits find what they are for, and what is accepted needs a reason and a day that has not come yet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from repo import audit
from repo.audit import AuditError, Exemption, Finding, apply, read_answer, read_exceptions, scan

TODAY = date(2026, 6, 1)
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2eF4hJ6kL8nP0rS"
KEY = "-----BEGIN RSA " + "PRIVATE KEY-----"
SECRETS = {
    "private key": [
        f"{KEY}\nMIIEpAIBAAKCAQEA7",
        f"{KEY}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0011223344556677\n\nMIIEpAIBAAKCAQEA7",
        f'{{"key": "{KEY}\\nMIIEpAIBAAKCAQEA7"}}',
    ],
    "AWS key": ["id = AKIA" + "QYLPMN5HFIQR7XYA"],
    "Hugging Face token": ["hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"],
    "GitHub token": ["ghp_" + MIXED[:36], "github_pat_" + MIXED[:22] + "_" + (MIXED * 2)[:59]],
    "Slack token": ["xoxb-" + "123456789012-abcdef", "https://hooks.slack.com/services/T0AB/B0CD/" + MIXED[:24]],
    "W&B key": ["WANDB_API_KEY: " + "0123456789abcdef" * 2 + "01234567"],
    "OpenAI or Anthropic key": ["sk-ant-" + MIXED],
    "PyPI token": ["pypi-AgE" + MIXED * 2],
    "Paribus token": ["paribus_" + MIXED[:43]],
    "password in a URL": ["postgresql://" + "ana:hunter22@db/paribus"],
    "assigned secret": ["API_KEY=" + MIXED[:24], '"client_secret": "' + MIXED[:32] + '"'],
}
HARMLESS = (
    "postgresql://user:***@host/db", "postgresql://user:password@host/db", "token: str = field(repr=False)",
    "secret = " + "a" * 40, "tokens = tokenizer_of_the_model", "https://example.org:8080/a@b", "password = os.environ",
    "-----BEGIN PUBLIC KEY-----\nMIIEpAIBAAKCAQEA7", f"{KEY} is how a private key begins",
)  # fmt: skip


def found(folder: Path, data: bytes) -> list[tuple[int, str]]:
    """Return line and rule of what is found in a file."""
    (folder / "x").write_bytes(data)
    return [(finding.line, finding.what) for finding in scan(folder, ["x"])]


def accept(what: str = "AWS key", expires: date = date(2026, 7, 1), count: int = 1) -> Exemption:
    """Return an exception of the file ``a``."""
    return Exemption("secret", "a", what, "made up", expires, count)


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in SECRETS.items() for text in texts])
def test_each_shape_is_found_with_its_line(tmp_path: Path, rule: str, text: str) -> None:
    """Between other lines, in a file that is no text, and in code with other quotes."""
    assert SECRETS.keys() == audit.RULES.keys()
    for before in (b"", b"first\nsecond\n", b"\xff\x00\n"):
        hits = found(tmp_path, before + text.encode() + b"\nlast\n")
        assert (before.count(b"\n") + 1, rule) in hits


@pytest.mark.parametrize("text", HARMLESS)
def test_words_and_placeholders_are_none(tmp_path: Path, text: str) -> None:
    """What has the shape of a secret and no content of one."""
    assert found(tmp_path, text.encode()) == []


def test_a_large_file_is_read_in_pieces_and_whole(tmp_path: Path) -> None:
    """A secret across the border of two pieces is found once, on its line; so is the last one."""
    secret = SECRETS["AWS key"][0].encode()
    line = b"x" * 63 + b"\n"
    head = line * (audit.CHUNK // 64)
    data = head[: -len(secret) // 2] + b"\n" + secret + b"\n" + head * 6 + secret
    assert len(data) > 6 << 20
    assert [rule for _, rule in found(tmp_path, data)] == ["AWS key"] * 2
    assert [n for n, _ in found(tmp_path, data)] == [data[: data.index(secret)].count(b"\n") + 1, data.count(b"\n") + 1]


def test_an_exception_holds_for_its_file_its_rule_and_its_time() -> None:
    """One that expired fails, and so does one that nothing needs."""
    here = [Finding("a", 3, "AWS key")]
    assert apply(here, [accept()], TODAY) == []
    assert apply(here, [], TODAY) == ["a:3: AWS key"]
    assert len(apply(here, [accept("private key")], TODAY)) == 2
    (finding, expired) = apply(here, [accept(expires=TODAY)], TODAY)
    assert finding == "a:3: AWS key"
    assert "expired on 2026-06-01" in expired
    assert "nothing needs" in apply([], [accept()], TODAY)[0]
    assert apply([], [accept()], TODAY, complete=False) == []


def test_an_exception_holds_for_as_many_as_it_says() -> None:
    """A second secret in a file with a made-up one may be real: all are listed; one that has gone is noticed, too."""
    two = [Finding("a", 3, "AWS key"), Finding("a", 9, "AWS key")]
    assert apply(two, [accept(count=2)], TODAY) == []
    said = apply(two, [accept()], TODAY)
    assert said[:2] == ["a:3: AWS key", "a:9: AWS key"]
    assert "is of 1, and there are 2" in said[2]
    (said,) = apply(two[:1], [accept(count=2)], TODAY)
    assert "is of 2, and there are 1" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[secret]]\npath='a'\nwhat='AWS key'\nreason='x'\nexpires=2027-01-01\n",
            "`count` must be a number, 1 or more",
        ),
        ("[[secret]]\npath='a'\nwhat='AWS key'\nreason='x'\nexpires=2027-01-01\ncount=0\n", "`count` must be a number"),
        ("[[secret]\n", "line 1"),
        ("[secret]\npath = 'a'\n", r"write entries as \[\[secret\]\]"),
        ("[[secrets]]\n", "unknown: secrets"),
        ("[[secret]]\npath = 'a'\nwhat = 'AWS key'\nreason = ''\nexpires = 2027-01-01\n", "`reason` must be a text"),
        ("[[secret]]\npath = 'a'\nwhat = 'AWS key'\nreason = 'x'\n", "`expires` must be a date"),
        (
            "[[secret]]\npath = 'a'\nwhat = 'AWS key'\nreason = 'x'\nexpires = '2027-01-01'\n",
            "`expires` must be a date",
        ),
        ("[[secret]]\npath = 'a'\nwhat = 'AWS'\nreason = 'x'\nexpires = 2027-01-01\ncount = 1\n", "`what` is no rule"),
        (
            "[[secret]]\npath='a'\nwhat='AWS key'\nreason='x'\nexpires=2027-01-01\ncount=1\nline=3\n",
            "unknown key `line`",
        ),
        ("\xff", "decode"),
    ],
)
def test_a_malformed_list_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    """It names the file and the entry; nothing is accepted by mistake."""
    path = tmp_path / "audit.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AuditError, match=rf"^audit\.toml: .*{message}"):
        read_exceptions(path)


def test_the_list_of_this_repository_is_valid() -> None:
    """Each entry has a reason."""
    assert all(len(each.reason) > 10 for each in read_exceptions(audit.EXCEPTIONS))


# ---- packages: answers as `pip-audit` 2.10 gives them ------------------------------------------------------------

VULNERABLE = json.dumps({"dependencies": [
    {"name": "idna", "version": "3.10", "vulns": []},
    {"name": "made-up", "version": "1.0", "vulns": [
        {"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": "x"}]},
], "fixes": []})  # fmt: skip
UNKNOWN = json.dumps({"dependencies": [{"name": "idna", "skip_reason": "Dependency not found on PyPI"}], "fixes": []})


def answer(monkeypatch: pytest.MonkeyPatch, output: str, errors: str = "") -> None:
    """Let `pip-audit` answer this."""

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, output, errors)

    monkeypatch.setattr(audit.subprocess, "run", run)
    monkeypatch.setattr(audit, "CONSTRAINTS", ("constraints.txt",))


def test_a_vulnerability_fails_until_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file, its identity, and the version that fixes it."""
    answer(monkeypatch, VULNERABLE)
    assert audit.audit_packages(Path(), (), TODAY) == 1
    said = capsys.readouterr().out
    assert "constraints.txt: 2 packages checked\n" in said
    assert "constraints.txt: PYSEC-2026-1: made-up 1.0; fixed in 1.1\n" in said
    known = Exemption("vulnerability", "constraints.txt", "PYSEC-2026-1", "not reachable", date(2026, 7, 1))
    assert audit.audit_packages(Path(), (known,), TODAY) == 0
    assert audit.audit_packages(Path(), (known,), date(2026, 8, 1)) == 1


@pytest.mark.parametrize("said", [("", "ConnectionError: Failed to resolve"), (UNKNOWN, ""), ("{}", "x"), ("[]", "")])
def test_a_service_that_is_away_is_said_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: tuple[str, str]
) -> None:
    """No connection, or an index that has no advisories and knows no package: neither counts as checked."""
    answer(monkeypatch, *said)
    known = Exemption("vulnerability", "constraints.txt", "PYSEC-2026-1", "not reachable", date(2026, 7, 1))
    assert audit.audit_packages(Path(), (known,), TODAY) == 0
    assert "NOT CHECKED, the service cannot be reached: " in capsys.readouterr().out


def test_what_the_service_does_not_know_is_counted() -> None:
    """Builds with a local version are on no index."""
    assert read_answer("c", UNKNOWN) == ([], 0, 1)
    assert read_answer("c", VULNERABLE)[1:] == (2, 0)
