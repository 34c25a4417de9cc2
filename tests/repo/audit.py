"""Looks for secrets in the tracked files, and for known vulnerabilities of the pinned packages.

``make audit`` runs both, ``make audit-secrets`` the first alone, which needs no network. What is known and accepted
stands in ``audit.toml`` beside this file, each entry with a reason and the day on which it must be looked at again.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).with_name("audit.toml")
CONSTRAINTS = ("constraints.txt", "constraints-vllm.txt", "runners/paribus_runners/trl/requirements.lock")

CHUNK = 1 << 20
"""Bytes of a file that are searched at once."""

OVERLAP = 4096
"""Bytes that are searched again with the next piece; no match is longer."""

ENTROPY = 3.6
"""Bits per character from which an assigned value counts as random: words have less, 20 random hex digits 3.7."""

_PLACEHOLDERS = re.compile(r"(?i)\*+|x+|\.+|pass(?:word)?|pw|secret|token|changeme|example|user|name|hidden|none|wrong")

RULES = {
    "private key": (
        r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr]){1,8}"
        r"(?:[\w-]{1,40}: [^\r\n\\]{1,200}(?:\s|\\[nr]){1,8}){0,8}[A-Za-z0-9+/=]{16}"
    ),
    "AWS key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "Hugging Face token": r"\bhf_[A-Za-z]{34}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})\b",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}|hooks\.slack\.com/services/T\w{1,20}/B\w{1,20}/\w{16}",
    "W&B key": r"(?i:wandb|weights.{0,3}biases)[^\r\n]{0,40}?\b[0-9a-f]{40}\b",
    "OpenAI or Anthropic key": r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,200}",
    "PyPI token": r"\bpypi-AgE[A-Za-z0-9_-]{50,300}",
    "Paribus token": r"\bparibus_[A-Za-z0-9_-]{43}(?![\w-])",
    "password in a URL": r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@'\"<>{}$]{0,64}:(?P<value>[^\s/@'\"<>{}$]{4,200})@",
    "assigned secret": (
        r"(?i:secret|token|passw(?:or)?d|api_?key|access_?key|credential)s?[\"']?\s{0,4}[:=]\s{0,4}"
        r"[\"']?(?P<value>[A-Za-z0-9+/_=-]{20,200})"
    ),
}
"""What a secret looks like; of a rule with a ``value``, that is looked at more closely."""

_RULES = {name: re.compile(rule) for name, rule in RULES.items()}


class AuditError(Exception):
    """The list of exceptions is not valid."""


@dataclass(frozen=True)
class Finding:
    """Something that must not be in the repository, or be pinned.

    Attributes:
        path: file, relative to the repository.
        line: line in it, from 1.
        what: name of the rule, or identity of the vulnerability.
        detail: for a person; never the secret.
    """

    path: str
    line: int
    what: str
    detail: str = ""


@dataclass(frozen=True)
class Exemption:
    """An accepted finding.

    Attributes:
        kind: ``secret`` or ``vulnerability``.
        path: the file that has it.
        what: name of the rule, or identity of the vulnerability.
        reason: why it is accepted.
        expires: the day from which it fails.
        count: how many of them the file has: one more may be a real one. A vulnerability is one.
    """

    kind: str
    path: str
    what: str
    reason: str
    expires: date
    count: int = 1


# ---- exceptions --------------------------------------------------------------------------------------------------


def read_exceptions(path: Path) -> tuple[Exemption, ...]:
    """Return the accepted findings.

    Raises:
        AuditError: the file cannot be read, is not TOML, or an entry lacks something; with file and place.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AuditError(f"{path.name}: {error}") from None
    if unknown := raw.keys() - {"secret", "vulnerability"}:
        raise AuditError(
            f"{path.name}: unknown: {', '.join(sorted(unknown))}; entries are [[secret]], [[vulnerability]]"
        )
    found = []
    for kind, rows in raw.items():
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise AuditError(f"{path.name}: write entries as [[{kind}]]")
        found += [_exemption(kind, row, f"{path.name}: [[{kind}]] {n}") for n, row in enumerate(rows, 1)]
    return tuple(found)


def _exemption(kind: str, row: dict[str, Any], place: str) -> Exemption:
    keys = {"path": str, "what": str, "reason": str, "expires": date, **({"count": int} if kind == "secret" else {})}
    for key, wanted in keys.items():
        value = row.get(key)
        if type(value) is not wanted or not str(value).strip() or (wanted is int and value < 1):
            shape = {date: "a date, as in 2027-01-31", int: "a number, 1 or more"}.get(
                wanted, "a text that is not empty"
            )
            raise AuditError(f"{place}: `{key}` must be {shape}")
    if unknown := row.keys() - keys:
        raise AuditError(f"{place}: unknown key `{sorted(unknown)[0]}`; allowed: {', '.join(keys)}")
    if kind == "secret" and row["what"] not in RULES:
        raise AuditError(f"{place}: `what` is no rule: {', '.join(RULES)}")
    return Exemption(kind, row["path"], row["what"], row["reason"], row["expires"], row.get("count", 1))


def apply(
    findings: Sequence[Finding], exceptions: Sequence[Exemption], today: date, *, complete: bool = True
) -> list[str]:
    """Return what is wrong: findings without an exception, expired exceptions, and such that nothing needs.

    Args:
        findings: of one kind.
        exceptions: those of the same kind.
        today: the day.
        complete: whether everything was looked at, so that an exception without a finding is not needed.
    """
    there = Counter((f.path, f.what) for f in findings)
    accepted = {
        (e.path, e.what)
        for e in exceptions
        if e.expires > today and (e.kind != "secret" or there[e.path, e.what] <= e.count)
    }
    wrong = [
        f"{f.path}{f':{f.line}' if f.line else ''}: {f.what}{f': {f.detail}' if f.detail else ''}"
        for f in findings
        if (f.path, f.what) not in accepted
    ]
    wrong += [
        f"{EXCEPTIONS.name}: the exception of {e.path} ({e.what}) expired on {e.expires}: {e.reason}"
        for e in exceptions
        if e.expires <= today
    ]
    for e in exceptions:
        found, place = there[e.path, e.what], f"{EXCEPTIONS.name}: the exception of {e.path} ({e.what})"
        if complete and e.expires > today and not found:
            wrong.append(f"{EXCEPTIONS.name}: nothing needs the exception of {e.path} ({e.what}): delete it")
        elif e.kind == "secret" and e.expires > today and found and found != e.count:
            wrong.append(f"{place} is of {e.count}, and there are {found}: look at each, then correct its `count`")
    return wrong


# ---- secrets -----------------------------------------------------------------------------------------------------


def scan(root: Path, names: Sequence[str]) -> Iterator[Finding]:
    """Yield what looks like a secret in files, whatever their size and kind; a link is not followed."""
    for name in names:
        path = root / name
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                yield from _search(name, file)


def _search(name: str, file: IO[bytes]) -> Iterator[Finding]:
    kept, start, lines, seen = "", 0, 1, set[tuple[str, int]]()
    while piece := file.read(CHUNK):
        text = kept + piece.decode("latin-1")  # each byte a character, so that a cut character changes nothing
        for rule, pattern in _RULES.items():
            for match in pattern.finditer(text):
                if (rule, start + match.start()) not in seen and _is_secret(rule, match):
                    seen.add((rule, start + match.start()))
                    yield Finding(name, lines + text.count("\n", 0, match.start()), rule)
        cut = max(0, len(text) - OVERLAP)
        lines, start, kept = lines + text.count("\n", 0, cut), start + cut, text[cut:]


def _is_secret(rule: str, match: re.Match[str]) -> bool:
    value = match.groupdict().get("value")
    if value is None:
        return True
    if rule == "password in a URL":
        return _PLACEHOLDERS.fullmatch(value) is None
    digits = sum(c.isdigit() for c in value)
    return bool(0 < digits < len(value)) and _entropy(value) >= ENTROPY


def _entropy(text: str) -> float:
    """Return the bits per character of a text, by how often each of its characters stands in it."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def tracked(root: Path) -> list[str]:
    """Return the names of the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    return [name for name in listed.decode(errors="surrogateescape").split("\0") if name]


# ---- packages ----------------------------------------------------------------------------------------------------


def read_answer(name: str, text: str) -> tuple[list[Finding], int, int]:
    """Return the vulnerabilities that `pip-audit` found, how many packages it checked, and how many it could not.

    Raises:
        ValueError: it is no such answer.
    """
    found, checked, skipped = [], 0, 0
    for package in json.loads(text)["dependencies"]:
        if "skip_reason" in package:
            skipped += 1
            continue
        checked += 1
        for each in package["vulns"]:
            fixed = f"fixed in {', '.join(each['fix_versions'])}" if each["fix_versions"] else "no version fixes it"
            found.append(Finding(name, 0, each["id"], f"{package['name']} {package['version']}; {fixed}"))
    return found, checked, skipped


def ask(root: Path, name: str) -> tuple[list[Finding], int, str]:
    """Return the vulnerabilities of the packages in a file, how many were checked, and why not all were."""
    command = [
        sys.executable, "-m", "pip_audit", "-r", name, "--no-deps", "--disable-pip", "-f", "json", "--timeout", "20",
        "--progress-spinner", "off",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
        found, checked, skipped = read_answer(name, done.stdout)
    except subprocess.TimeoutExpired:
        return [], 0, "no answer in five minutes"
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines()
        return [], 0, said[-1][:300] if said else f"pip-audit ended with exit status {done.returncode}"
    return found, checked, f"the service does not know {skipped} packages" if skipped else ""


# ---- the command -------------------------------------------------------------------------------------------------


def audit_secrets(root: Path, exceptions: Sequence[Exemption], today: date) -> int:
    """Print what looks like a secret in the tracked files; return the exit status."""
    names = tracked(root)
    wrong = apply(list(scan(root, names)), [e for e in exceptions if e.kind == "secret"], today)
    print("\n".join(wrong) if wrong else f"secrets: none in {len(names)} files")
    return 1 if wrong else 0


def audit_packages(root: Path, exceptions: Sequence[Exemption], today: date) -> int:
    """Print known vulnerabilities of the pinned packages, and what could not be checked; return the exit status."""
    findings, complete = [], True
    for name in CONSTRAINTS:
        found, checked, missing = ask(root, name)
        findings += found
        complete = complete and not missing
        state = f"{checked} packages checked" if checked else "NOT CHECKED, the service cannot be reached"
        print(f"{name}: {state}{f': {missing}' if missing else ''}")
    of_packages = [e for e in exceptions if e.kind == "vulnerability"]
    wrong = apply(findings, of_packages, today, complete=complete)
    print("\n".join(wrong) if wrong else f"vulnerabilities: {len(findings)}, all accepted")
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    """Run one of the audits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("secrets", "packages"))
    what = parser.parse_args(arguments).what
    try:
        exceptions = read_exceptions(EXCEPTIONS)
    except AuditError as error:
        print(error, file=sys.stderr)
        return 2
    today = datetime.now(UTC).date()
    return (audit_secrets if what == "secrets" else audit_packages)(ROOT, exceptions, today)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
