"""What travels: a study with what belongs to it, and nothing that could be written elsewhere than where it belongs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from paribus.archive.tar_file import Manifest, Member
from paribus.errors import ArchiveError, ServerError, StudyFileError
from paribus.remote import bundle as module
from paribus.remote.bundle import MOST_SOURCE, pack_report, pack_study, unpack_report, unpack_study
from paribus.study.load import load_study

STUDY = """
study: travels
question: Does it travel?
base:
  preset: grpo
  set:
    model: tiny
    task: search
    kl: off
    reward: {kind: function, functions: {short: mine.sub.short}}
designs: {solo: {kind: list, arms: {plain: {}}}}
seeds: {n: 1}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with a package of rewards beside it, and files that don't belong to it."""
    folder = tmp_path / "laptop"
    (folder / "mine").mkdir(parents=True)
    (folder / "study file.yaml").write_text(STUDY)
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "sub.py").write_text("from helper import half\n\ndef short(completions): return [half(1)]\r\n")
    (folder / "helper.py").write_text("def half(x): return x / 2\n")
    (folder / "secret.py").write_text("KEY = 1\n")
    (folder / ".env").write_text("KEY=1\n")
    return folder / "study file.yaml"


def packed(files: Mapping[str, bytes], path: Path, claimed: tuple[Member, ...] | None = None) -> Path:
    """Write a bundle with any names and content; with ``claimed``, under another list."""
    members = claimed or tuple(
        Member(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()
    )
    own = Manifest(study="travels", paribus="0", files=members).to_json()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in {"manifest.json": own, **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_a_study_arrives_with_its_rewards_and_nothing_else(study: Path, tmp_path: Path) -> None:
    """Byte by byte, and the study loads there as it does here; what isn't imported stays."""
    (tmp_path / "x.tar").write_bytes(pack_study(study))
    there = tmp_path / "there"
    there.mkdir()
    found = unpack_study(tmp_path / "x.tar", there)
    assert sorted(str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()) == [
        "helper.py", "mine/__init__.py", "mine/sub.py", "study.yaml",
    ]  # fmt: skip
    assert (there / "mine" / "sub.py").read_bytes() == (study.parent / "mine" / "sub.py").read_bytes()
    assert load_study(found).options == load_study(study).options


def test_a_study_of_several_parts_arrives_whole(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Included files, variables and changes are sent with the values that they have here."""
    monkeypatch.setenv("SEEDS", "3")
    (study.parent / "base.yaml").write_text(STUDY.replace("{n: 1}", '{n: "${SEEDS}"}'))
    study.write_text("include: base.yaml\nquestion: 'costs ${MONEY}'\n")
    (tmp_path / "x.tar").write_bytes(pack_study(study, ["clip.high=0.3"]))
    monkeypatch.delenv("SEEDS")
    there = tmp_path / "there"
    there.mkdir()
    found = load_study(unpack_study(tmp_path / "x.tar", there), sent=True)
    assert (found.spec.seeds.n, found.spec.question) == (3, "costs ${MONEY}")
    assert found.base.clip.model_dump()["high"] == 0.3
    assert not (there / "base.yaml").exists()


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "beside/../evil.py", "beside/../../evil.py", "/etc/evil.py", "beside//x.py", "beside/./x.py",
     "besides/x.sh", "beside/", "other.yaml", "beside", "beside/.py/../../x.py",
     "runs/" + "0" * 12 + "/a1/x.py", "store.json"],
)  # fmt: skip
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    """The list of files is checked before anything is written."""
    there = tmp_path / "home" / "there"
    there.mkdir(parents=True)
    path = packed({"study.yaml": b"study: x\n", name: b"evil = 1\n"}, tmp_path / "x.tar")
    with pytest.raises(ArchiveError, match=r"not the name of a file in an archive|twice"):
        unpack_study(path, there)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_links_and_other_sizes_are_refused(tmp_path: Path) -> None:
    """A tar file can hold a link under a good name, and say another size than its list."""
    there = tmp_path / "there"
    there.mkdir()
    good = {"study.yaml": b"study: x\n"}
    path = packed(good, tmp_path / "x.tar")
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"study.yaml")
    info = tarfile.TarInfo("study.yaml")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    raw[at : at + 512] = info.tobuf(tarfile.PAX_FORMAT)
    path.write_bytes(raw)
    with pytest.raises(ArchiveError, match=r"a link named|must stand"):
        unpack_study(path, there)
    long = (Member(name="study.yaml", size=1 << 40, sha256="0" * 64),)
    with pytest.raises(ArchiveError):
        unpack_study(packed(good, tmp_path / "y.tar", long), there)
    assert list(there.iterdir()) == []


def test_sizes_and_numbers_of_files_are_limited(tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the sender's side, with a sentence; and on the receiver's, whatever was sent."""
    there = tmp_path / "there"
    there.mkdir()
    large = {"study.yaml": b"study: x\n", "beside/x.py": b"#" * (MOST_SOURCE + 1)}
    with pytest.raises(ArchiveError, match="not a whole number from 0 to 1000000"):
        unpack_study(packed(large, tmp_path / "x.tar"), there)
    many = {"study.yaml": b"", **{f"beside/x{n}.py": b"" for n in range(200)}}
    with pytest.raises(ArchiveError, match="201 files, and 200 are allowed"):
        unpack_study(packed(many, tmp_path / "y.tar"), there)
    with pytest.raises(ArchiveError, match="does not list study"):
        unpack_study(packed({"beside/x.py": b""}, tmp_path / "z.tar"), there)
    monkeypatch.setattr(module, "MOST_BUNDLE", 4096)
    with pytest.raises(ServerError, match=r"more than the 4,096 allowed"):
        pack_study(study)


def test_a_mistake_is_found_before_anything_is_sent(study: Path) -> None:
    """With its place, as everywhere."""
    study.write_text(STUDY.replace("preset: grpo", "preset: grp"))
    with pytest.raises(StudyFileError, match=r"study file.yaml:5:11: .*grpo"):
        pack_study(study)


def test_a_report_comes_back_whole(tmp_path: Path) -> None:
    """With its folder of tables, over an earlier one; links are left out."""
    report, out = tmp_path / "report", tmp_path / "reports" / "x"
    (report / "tables").mkdir(parents=True)
    (report / "report.md").write_text("# new")
    (report / "tables" / "ladder.tex").write_text("t")
    (report / "link.md").symlink_to("/etc/passwd")
    out.mkdir(parents=True)
    (out / "report.md").write_text("# old")
    (out / "mine.txt").write_text("mine")
    about = {"text": "é", "notes": [], "paths": ["report.md"]}
    assert unpack_report(pack_report("x", about, report), out) == about
    assert {p.name: p.read_text() for p in out.rglob("*") if p.is_file()} == {
        "report.md": "# new", "ladder.tex": "t", "mine.txt": "mine",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["../evil", "report/../../evil", "/evil", "elsewhere/x", f"report/{'x' * 300}", f"report/{'x' * 300}/y"]
)
def test_a_server_writes_only_into_the_folder_of_the_report(tmp_path: Path, name: str) -> None:
    """A user's machine believes a server no more than the server believes the user."""
    files = {"answer.json": json.dumps({"text": ""}).encode(), "report/report.md": b"x", name: b"evil"}
    path = packed(files, tmp_path / "x.tar")
    with pytest.raises(ArchiveError):
        unpack_report(path.read_bytes(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_study_with_a_file_of_rules_is_refused_before_it_travels(study: Path) -> None:
    """The server would look for the file beside its own copy of the study."""
    rule = {
        "name": "low",
        "metric": "policy/entropy",
        "test": {"kind": "below", "limit": 0.1},
        "level": "warn",
        "remedy": "look",
    }
    (study.parent / "low.yaml").write_text(json.dumps(rule))
    study.write_text(f"{STUDY}health: {{rules: [low.yaml]}}\n")
    with pytest.raises(ServerError, match="files of rules do not travel"):
        pack_study(study)
