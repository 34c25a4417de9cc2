"""What travels between a server and the machine of a user: a study with its reward functions, and a report back.

Both are archives of :mod:`paribus.archive.tar_file` with other files in them: the receiver compares every byte with
the list at the beginning, so that links, devices, paths that lead elsewhere and files of another size never get to it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.archive.tar_file import ArchiveReader, Layout, Manifest, member, write_archive
from paribus.errors import ArchiveError, ServerError
from paribus.remote import received
from paribus.run_folder.json_text import shown
from paribus.study.load import load_study
from paribus.study.sources import MOST_BYTES as MOST_SOURCE
from paribus.version import VERSION
from paribus.yaml_file.document import MAX_BYTES as MOST_STUDY
from paribus.yaml_file.write import whole_text

STUDY, SOURCES = "study.yaml", "beside"
ANSWER, REPORT = "answer.json", "report"

MOST_FILES = 200
"""Most files of a bundle."""

MOST_BUNDLE = 16 << 20
"""Most bytes of a bundle: a study and some source files, no data."""

MOST_REPORT = 1 << 30
"""Most bytes of a report."""


STUDY_BUNDLE = Layout(
    kind="a study that `paribus submit` has sent",
    required=STUDY,
    allows=lambda name: name == STUDY or name.startswith(f"{SOURCES}/"),
    most_bytes=lambda name: MOST_STUDY if name == STUDY else MOST_SOURCE,
    most_files=MOST_FILES,
)

REPORT_BUNDLE = Layout(
    kind="a report of a server",
    required=ANSWER,
    allows=lambda name: name == ANSWER or name.startswith(f"{REPORT}/"),
    most_bytes=lambda name: 1 << 24 if name == ANSWER else MOST_REPORT,
    most_files=10_000,
)


def pack_study(path: Path, changes: Sequence[str] = ()) -> bytes:
    """Return the bundle of a study file: itself, and the files beside it that its rewards or its program come from.

    A file with variables, an ``include`` or ``changes`` (of ``--set``) is sent with their values, as the server has
    neither this machine's environment nor its files.

    Raises:
        StudyFileError: the file is not a valid study; every problem is listed with its place.
        ServerError: it is too large to be sent.
    """
    loaded = load_study(path, changes)
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        stage = Path(folder)
        if rules := [name for name in loaded.spec.health.rules if name.endswith((".yaml", ".yml"))]:
            raise ServerError(
                f"{path} names the file {rules[0]} under `health.rules`, and files of rules do not travel yet. Leave "
                "it out here, or submit the study on the server."
            )
        files = {STUDY: stage / STUDY}
        assert loaded.root is not None  # it came from a file
        files[STUDY].write_text(whole_text(path, loaded.root), encoding="utf-8", newline="")
        for name, text in loaded.options.sources.items():
            source = stage / SOURCES / name
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(text, newline="")
            files[f"{SOURCES}/{name}"] = source
        if len(files) > MOST_FILES:
            raise ServerError(f"{path} comes with {len(files) - 1} source files: more than the {MOST_FILES - 1} sent")
        return _pack(loaded.spec.study, files, stage, MOST_BUNDLE, str(path))


def unpack_study(bundle: Path, folder: Path) -> Path:
    """Unpack a study into an empty folder, and return the path of its file; its reward functions lie beside it.

    Raises:
        ArchiveError: it is not such a bundle.
    """
    with ArchiveReader(bundle, STUDY_BUNDLE) as reader:
        for each, pieces in reader.members():
            _unpack(each.name, pieces, folder / each.name.removeprefix(f"{SOURCES}/"), bundle)
    return folder / STUDY


def pack_report(study: str, answer: Mapping[str, Any], report: Path) -> bytes:
    """Return a report, and what `paribus report` prints about it, as a bundle.

    Raises:
        ServerError: it is too large to be sent.
    """
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        stage = Path(folder)
        (stage / ANSWER).write_text(json.dumps(answer))
        files = {ANSWER: stage / ANSWER}
        files |= {
            f"{REPORT}/{path.relative_to(report).as_posix()}": path
            for path in sorted(report.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        return _pack(study, files, stage, MOST_REPORT, f"the report of {study}")


def unpack_report(bundle: bytes, out: Path) -> dict[str, Any]:
    """Unpack a report into a folder, over the files of an earlier one, and return what to print about it.

    Every file is checked before one is written.

    Raises:
        ArchiveError: it is not such a bundle, or cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        stage = Path(folder) / "unpacked"
        packed = Path(folder) / "report.tar"
        packed.write_bytes(bundle)
        with ArchiveReader(packed, REPORT_BUNDLE) as reader:
            for each, pieces in reader.members():
                _unpack(each.name, pieces, stage / each.name, packed)
        answer = _about((stage / ANSWER).read_bytes(), stage / REPORT)
        try:
            out.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a report of no files
                shutil.copytree(stage / REPORT, out, dirs_exist_ok=True)
        except OSError as error:
            raise ArchiveError(f"cannot write the report to {out}: {error}") from error
        return answer


def _unpack(name: str, pieces: Iterable[bytes], path: Path, bundle: Path) -> None:
    """Write a file of a bundle, which does not exist yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.writelines(pieces)
    except OSError as error:
        raise ArchiveError(f"{bundle}: {shown(name)} cannot be unpacked: {error.strerror}") from error


def _about(data: bytes, report: Path) -> dict[str, Any]:
    """Return what a server says about a report; the files that it names are there.

    Raises:
        ArchiveError: it says something else.
    """
    try:
        answer: dict[str, Any] = received.REPORT(received.parse(data), ANSWER)
    except ValueError as error:
        raise ArchiveError(f"{ANSWER} of the server's report is damaged: {error}") from None
    there = {received.visible(path.relative_to(report).as_posix()) for path in report.rglob("*")}
    if missing := [path for path in answer["paths"] if path not in there]:
        raise ArchiveError(f"{ANSWER} of the server's report names {missing[0]!r}, which did not come with it")
    return answer


def _pack(study: str, files: Mapping[str, Path], stage: Path, most: int, what: str) -> bytes:
    """Return an archive of files of the disk."""
    manifest = Manifest(study=study, paribus=VERSION, files=tuple(member(name, path) for name, path in files.items()))
    if manifest.size > most:
        raise ServerError(f"{what} has {manifest.size:,} bytes with what belongs to it, more than the {most:,} allowed")
    packed = stage / "bundle.tar"
    with packed.open("xb") as file:
        write_archive(file, manifest, files)
    return packed.read_bytes()
