"""What people say of studies and runs: notes, tags, and whether a study is archived.

The table is a log. What holds now is the sum of its lines, so each change keeps who made it and when. A run is named by
its fingerprint, a study by its name: what is said of a run holds in all studies that share it, and a study keeps its
note when its plan changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.store import tables as t
from paribus.store.transitions import Now

MOST_NOTE = 4_000
"""Most characters of a note."""

MOST_TAG, MOST_TAGS = 40, 50
"""Most characters of a tag, and most tags of a study or run."""

MOST_AUTHOR = 200

_TAG = re.compile(r"\w[\w.:/-]*")
_UNKEPT = re.compile("[\0\ud800-\udfff]")  # no database keeps these as text


class Kind(StrEnum):
    """What a remark does."""

    NOTE = "note"
    TAG = "tag"
    UNTAG = "untag"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A study or a run that has remarks: exactly one of the two is set.

    Attributes:
        study: name of a study.
        run: fingerprint of a run.
    """

    study: str = ""
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One line of the log.

    Attributes:
        study: name of the study; empty: it is about a run.
        run: fingerprint of the run; empty: it is about a study.
        at: seconds since 1970.
        author: login name, or name of a token.
        kind: one of :class:`Kind`, or what a newer version knows.
        text: a note (empty: it was removed), a tag, or for ``delete`` what was deleted.
    """

    study: str
    run: str
    at: float
    author: str
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class About:
    """What holds of a study or run now.

    Attributes:
        note: its note; empty: none.
        author: who wrote the note.
        at: when.
        tags: its tags, in alphabetical order.
        archived: whether lists leave it out.
    """

    note: str = ""
    author: str = ""
    at: float = 0.0
    tags: tuple[str, ...] = ()
    archived: bool = False


NOTHING = About()


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a user asks for; ``None`` and empty: as it is.

    Attributes:
        note: the new note; empty: none.
        add: tags to add.
        remove: tags to remove.
        archived: whether lists leave it out; of studies only.
    """

    note: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    archived: bool | None = None


def check_tags(tags: Iterable[str]) -> None:
    """Refuse what cannot be a tag.

    Raises:
        StoreError: one of them is empty, is too long, or has characters that are not allowed.
    """
    for tag in tags:
        if not _TAG.fullmatch(tag) or len(tag) > MOST_TAG:
            raise StoreError(
                f"{tag[:60]!r} is no tag: at most {MOST_TAG} letters, digits, `_`, `.`, `:`, `/` and `-`, of which the "
                "first is a letter, a digit or `_`."
            )


def checked(change: Change) -> Change:
    """Return a change as it is kept: without blanks around the note.

    Raises:
        StoreError: a note or tag is too long, or has characters that are not allowed.
    """
    check_tags((*change.add, *change.remove))
    if both := sorted({*change.add} & {*change.remove}):
        raise StoreError(f"the tag `{both[0]}` is to be added and removed: say which.")
    if change.note is None:
        return change
    note = change.note.replace("\r\n", "\n").strip()
    if len(note) > MOST_NOTE:
        raise StoreError(f"the note has {len(note):,} characters, and {MOST_NOTE:,} are allowed.")
    if odd := _UNKEPT.search(note):
        raise StoreError(f"the note has {odd[0]!r} at character {odd.start() + 1}, which is no text.")
    return replace(change, note=note)


def after(about: About, remark: Remark) -> About:
    """Return what holds after one more line of the log; one of an unknown kind changes nothing."""
    match remark.kind:
        case Kind.NOTE:
            author, at = (remark.author, remark.at) if remark.text else ("", 0.0)
            return replace(about, note=remark.text, author=author, at=at)
        case Kind.TAG:
            return replace(about, tags=tuple(sorted({*about.tags, remark.text})))
        case Kind.UNTAG:
            return replace(about, tags=tuple(tag for tag in about.tags if tag != remark.text))
        case Kind.ARCHIVE | Kind.UNARCHIVE:
            return replace(about, archived=remark.kind == Kind.ARCHIVE)
        case Kind.DELETE:
            return NOTHING
    return about


def lines_of(about: About, change: Change) -> tuple[tuple[Kind, str], ...]:
    """Return the lines that a change adds to the log: none for what holds already.

    Raises:
        StoreError: there would be too many tags.
    """
    lines = [(Kind.NOTE, change.note)] if change.note is not None and change.note != about.note else []
    lines += [(Kind.TAG, tag) for tag in dict.fromkeys(change.add) if tag not in about.tags]
    lines += [(Kind.UNTAG, tag) for tag in dict.fromkeys(change.remove) if tag in about.tags]
    if len({*about.tags, *change.add} - {*change.remove}) > MOST_TAGS:
        raise StoreError(f"there may be {MOST_TAGS} tags, and it would have more.")
    if change.archived is not None and change.archived != about.archived:
        lines.append((Kind.ARCHIVE if change.archived else Kind.UNARCHIVE, ""))
    return tuple(lines)


def total(remarks: Iterable[Remark]) -> Mapping[tuple[str, str], About]:
    """Return what holds, by study and run, of those with a remark."""
    found: dict[tuple[str, str], About] = {}
    for remark in remarks:
        key = (remark.study, remark.run)
        found[key] = after(found.get(key, NOTHING), remark)
    return found


# ---- the table; the connection is in a transaction -----------------------------------------------------


def read(connection: sa.Connection, which: sa.ColumnElement[bool]) -> tuple[Remark, ...]:
    """Return lines of the log, the oldest first."""
    columns = [t.remark.c[name] for name in Remark.__dataclass_fields__]
    rows = connection.execute(sa.select(*columns).where(which).order_by(t.remark.c.id))
    return tuple(Remark(**row._mapping) for row in rows)


def of(subject: Subject) -> sa.ColumnElement[bool]:
    """Return the condition on the lines about a study or run."""
    return sa.and_(t.remark.c.study == subject.study, t.remark.c.run == subject.run)


def write(
    connection: sa.Connection, now: Now, subject: Subject, author: str, lines: Sequence[tuple[Kind, str]]
) -> None:
    """Append lines to the log."""
    own = {"study": subject.study, "run": subject.run, "author": author[:MOST_AUTHOR]}
    for kind, text in lines:
        connection.execute(sa.insert(t.remark).values(**own, kind=str(kind), text=text, at=now))


def change_remarks(connection: sa.Connection, now: Now, subject: Subject, author: str, change: Change) -> About:
    """Append what a change adds; return what holds then."""
    known = total(read(connection, of(subject))).get((subject.study, subject.run), NOTHING)
    write(connection, now, subject, author, lines_of(known, change))
    return total(read(connection, of(subject))).get((subject.study, subject.run), NOTHING)


def of_runs(connection: sa.Connection, studies: Collection[int]) -> Mapping[str, About]:
    """Return what is said of the runs of some studies, by fingerprint."""
    mine = sa.select(t.run.c.fingerprint).join(t.study_run, t.study_run.c.run_id == t.run.c.id)
    said = read(connection, t.remark.c.run.in_(mine.where(t.study_run.c.study_id.in_(studies))))
    return {run: about for (_, run), about in total(said).items()}


def of_studies(connection: sa.Connection) -> Mapping[str, About]:
    """Return what is said of studies, by name."""
    return {study: about for (study, _), about in total(read(connection, t.remark.c.study != "")).items()}
