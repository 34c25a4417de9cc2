"""The format of an archive: a plain tar file whose first member lists all others with their sizes and hashes.

====================================  ====================================================================
``manifest.json``                     format, versions, the study, and name, size and SHA-256 of each other file
``store.json``                        the rows of the store: :mod:`paribus.store.transfer`
``runs/<run>/a<token>/...``           the run folders
``report/...``                        the report when it was written, for people; ``restore`` does not need it
====================================  ====================================================================

The bundles that travel to and from a server of a team have the same format with other files in it: :class:`Layout`.

The reader parses no tar header but the first. It makes each header from the manifest, as the writer did, and compares
the bytes: a link, a device, a file twice, a name or a size that the manifest does not have all differ from what must
stand there. As nothing is compressed, what is unpacked is never larger than the archive.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from paribus.errors import ArchiveError, RunFolderError
from paribus.recipe.recipe import canonical_json
from paribus.run_folder.json_text import field_of, fields, listed, parse_json, shown, text, whole

FORMAT = 1
"""Version of the format; another one is refused."""

MANIFEST, STORE, RUNS, REPORT = "manifest.json", "store.json", "runs", "report"

_MOST_MANIFEST = 1 << 25
"""Bytes of the manifest, which is read into memory."""

_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 1 << 20
_LONGEST_NAME = 1000
_RUN_FILE = re.compile(r"runs/[0-9a-f]{12}/a[1-9][0-9]{0,8}/.+")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file in an archive: its name, its size in bytes, and its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What an archive may hold.

    Attributes:
        kind: what it is, for messages.
        required: name of a file that it must have.
        allows: whether a name may stand in it; the reader itself refuses names that lead out of a folder.
        most_bytes: most bytes of a file, by its name.
        most_files: most files.
    """

    kind: str
    required: str
    allows: Callable[[str], bool]
    most_bytes: Callable[[str], int]
    most_files: int = 1 << 24


STUDY = Layout(
    kind="an archive of `paribus export`",
    required=STORE,
    allows=lambda name: name == STORE or name.startswith(f"{REPORT}/") or bool(_RUN_FILE.fullmatch(name)),
    most_bytes=lambda name: 1 << 26 if name == STORE else 1 << 50,  # the rows are read into memory
)
"""The layout of `paribus export`."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The first file of an archive.

    Attributes:
        study: name of the study.
        paribus: version that wrote it.
        files: all other files, in their order.
    """

    study: str
    paribus: str
    files: tuple[Member, ...]

    def to_json(self) -> bytes:
        """Return the content of ``manifest.json``: canonical, with a digest of itself."""
        files = [[m.name, m.size, m.sha256] for m in self.files]
        raw = {"format": FORMAT, "study": self.study, "paribus": self.paribus, "files": files}
        return canonical_json({**raw, "digest": _digest(raw)}).encode()

    @property
    def size(self) -> int:
        """Bytes of the whole archive."""
        content = sum(len(_header(m.name, m.size)) + _padded(m.size) for m in self.files)
        own = len(self.to_json())
        return _whole_records(content + len(_header(MANIFEST, own)) + _padded(own) + 2 * _BLOCK)


def member(name: str, path: Path) -> Member:
    """Return a file of the disk as a member.

    Raises:
        OSError: it cannot be read.
    """
    size, seen = 0, hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            size += len(data)
            seen.update(data)
    return Member(name=name, size=size, sha256=seen.hexdigest())


# ---- writing -----------------------------------------------------------------------------------------


def write_archive(file: IO[bytes], manifest: Manifest, sources: Mapping[str, Path]) -> None:
    """Write an archive.

    Args:
        file: where to; it is at its beginning.
        manifest: what it holds.
        sources: the file on the disk of each member.

    Raises:
        ArchiveError: a file is not the one any more that the manifest describes.
        OSError: a file cannot be read, or the archive cannot be written.
    """
    own = manifest.to_json()
    if len(own) > _MOST_MANIFEST:
        raise ArchiveError(f"the study has {len(manifest.files)} files: more than an archive can list")
    file.write(_header(MANIFEST, len(own)) + own + _padding(len(own)))
    for each in manifest.files:
        file.write(_header(each.name, each.size))
        left, seen = each.size, hashlib.sha256()
        with sources[each.name].open("rb") as source:
            while left and (data := source.read(min(left, _CHUNK))):
                file.write(data)
                seen.update(data)
                left -= len(data)
        if left or seen.hexdigest() != each.sha256:
            raise ArchiveError(f"{sources[each.name]} was changed while it was copied: repeat the command")
        file.write(_padding(each.size))
    file.write(bytes(_whole_records(file.tell() + 2 * _BLOCK) - file.tell()))


def _header(name: str, size: int) -> bytes:
    """Return the tar header of a regular file; without times and owners, so that equal studies give equal files."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _padded(size: int) -> int:
    return size + -size % _BLOCK


def _whole_records(size: int) -> int:
    return size + -size % tarfile.RECORDSIZE


def _digest(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(raw).encode()).hexdigest()


# ---- reading -----------------------------------------------------------------------------------------


class ArchiveReader:
    """Reads an archive once, from its beginning to its end.

    Args:
        path: the archive.
        layout: what it may hold.

    Raises:
        ArchiveError: it is no archive of this format, or it is longer or shorter than its manifest says.
    """

    def __init__(self, path: Path, layout: Layout = STUDY) -> None:
        self._path, self._layout = path, layout
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ArchiveError(f"cannot read {path}: {error}") from error
        try:
            self.manifest = self._read_manifest()
            self._check_size()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def members(self) -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Yield each file with its content in pieces; use up the pieces before the next file.

        Raises:
            ArchiveError: the next bytes are not those of the manifest; the message names the file. While pieces are
                read: the content has another hash.
        """
        for each in self.manifest.files:
            self._expect(_header(each.name, each.size), f"the header of {shown(each.name)}")
            yield each, self._content(each)
            self._expect(_padding(each.size), f"zeros after {shown(each.name)}")
        rest = self._file.read(tarfile.RECORDSIZE + 2 * _BLOCK)
        if any(rest):
            raise self._damaged("there is something behind the last file")

    def _content(self, each: Member) -> Iterator[bytes]:
        left, seen = each.size, hashlib.sha256()
        while left and (data := self._read(min(left, _CHUNK))):
            seen.update(data)
            left -= len(data)
            yield data
        if left or seen.hexdigest() != each.sha256:
            raise self._damaged(f"{shown(each.name)} is not the file that was archived: its SHA-256 differs")

    def _read_manifest(self) -> Manifest:
        block = self._read(_BLOCK)
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            fits = info.isreg() and info.name == MANIFEST and info.size <= _MOST_MANIFEST
            if not fits or block != _header(MANIFEST, info.size):
                raise ValueError("its first file is not a manifest")
            own = self._read(info.size)
            self._expect(_padding(info.size), f"zeros after {MANIFEST}")
            return _checked_manifest(own, self._layout)
        except (tarfile.HeaderError, ValueError, RunFolderError) as error:
            hint = " Archives that were compressed must be unpacked first." if block[:2] in _COMPRESSED else ""
            raise ArchiveError(
                f"{self._path} is not {self._layout.kind}, or is damaged: {MANIFEST}: {error}.{hint}"
            ) from error

    def _check_size(self) -> None:
        try:
            there = self._path.stat().st_size
        except OSError as error:
            raise ArchiveError(f"cannot read {self._path}: {error}") from error
        if there != self.manifest.size:
            change = "cut" if there < self.manifest.size else "lengthened"
            raise ArchiveError(
                f"{self._path} has {there} bytes, but its manifest describes {self.manifest.size}: it was {change} "
                "after it was written"
            )

    def _expect(self, wanted: bytes, what: str) -> None:
        at = self._file.tell()
        if (found := self._read(len(wanted))) != wanted:
            raise self._damaged(f"at byte {at} must stand {what}, but there is {_described(found)}")

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise ArchiveError(f"cannot read {self._path}: {error}") from error

    def _damaged(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self._path} is damaged, or was changed after it was written: {why}")


_COMPRESSED = (b"\x1f\x8b", b"BZ", b"\xfd7", b"(\xb5", b"PK")


def _described(found: bytes) -> str:
    """Return what stands where a header was expected, for a message."""
    try:
        info = tarfile.TarInfo.frombuf(found[:_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return "something else"
    kinds = {
        tarfile.SYMTYPE: "a link",
        tarfile.LNKTYPE: "a link",
        tarfile.DIRTYPE: "a folder",
        tarfile.FIFOTYPE: "a pipe",
    }
    kinds |= dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "a device")
    return f"{kinds.get(info.type, 'another file')} named {shown(info.name)}"


def _checked_manifest(data: bytes, layout: Layout) -> Manifest:
    """Return the manifest in these bytes.

    Raises:
        ValueError: they are not exactly those of a manifest.
        RunFolderError: they are not JSON.
    """
    raw = fields(parse_json(data, MANIFEST))
    if (version := field_of(raw, "format")) != FORMAT or isinstance(version, bool):
        raise ValueError(f"its format is {shown(version)}, and this version of Paribus reads {FORMAT}")
    rows = listed(field_of(raw, "files"), "files")
    if len(rows) > layout.most_files:
        raise ValueError(f"it lists {len(rows)} files, and {layout.most_files} are allowed")
    files = tuple(_checked_member(m, layout) for m in rows)
    study, version = text(field_of(raw, "study"), "study"), text(field_of(raw, "paribus"), "paribus")
    found = Manifest(study=study, paribus=version, files=files)
    if found.to_json() != data:
        raise ValueError("its digest does not fit")
    if names := _twice([m.name for m in files]):
        raise ValueError(f"it lists {shown(names[0])} twice, or as a file and as a folder")
    if layout.required not in {m.name for m in files}:
        raise ValueError(f"it does not list {layout.required}")
    return found


def _checked_member(value: Any, layout: Layout) -> Member:
    row = listed(value, "files")
    if len(row) != 3:
        raise ValueError(f"{shown(row)} is not a name with a size and a hash")
    name, digest = text(row[0], "files"), text(row[2], "files")
    size = whole(row[1], "files", 0, layout.most_bytes(name))
    parts = PurePosixPath(name).parts
    plain = name == "/".join(parts) and ".." not in parts and "\0" not in name and len(name.encode()) <= _LONGEST_NAME
    if not (plain and not name.startswith("/") and layout.allows(name)):
        raise ValueError(f"{shown(name)} is not the name of a file in an archive")
    if not _HASH.fullmatch(digest):
        raise ValueError(f"{shown(digest)} is not a SHA-256")
    return Member(name=name, size=size, sha256=digest)


def _twice(names: Sequence[str]) -> list[str]:
    """Return the names that stand there twice, or are also the folder of another."""
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    seen: set[str] = set()
    return [name for name in names if name in folders or name in seen or seen.add(name)]  # type: ignore[func-returns-value]
