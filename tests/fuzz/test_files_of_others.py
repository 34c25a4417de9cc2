"""What colleagues and other machines give: rules, tables, configurations, problems, tokens and bundles.

As in `test_user_files.py`: any bytes give values or one error, and nothing is written outside of the test's folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from paribus.archive.tar_file import Manifest, Member
from paribus.errors import ParibusError
from paribus.health.detector import Setting
from paribus.health.diagnose import judge_lines
from paribus.health.finding import plain
from paribus.health.own_rules import own_detectors
from paribus.health.profile import load_profile
from paribus.home import data_root
from paribus.published.audit import audit, conclusions
from paribus.published.page import html_page
from paribus.published.tables import read_table
from paribus.published.text import facts, markdown
from paribus.recipe.recipe import DatasetTask, JsonlTask, Source
from paribus.remote.answers import error_from_json
from paribus.remote.bundle import unpack_report, unpack_study
from paribus.remote.tokens import Tokens
from paribus.run_folder.folder import MetricLine
from paribus.run_folder.json_text import fields, parse_json
from paribus.study.load import load_study
from paribus.study.rules import read_rule
from paribus_runners.import_config.command import _trl, _verl, study_text
from paribus_runners.tasks.dataset import entries_of
from paribus_runners.tasks.jsonl import Jsonl
from support.damage import damaged, put
from support.kinds import Kind, check_kind

RULE = (
    b"name: length_doubles\nmetric: response/length_mean\ntest: {kind: grows, factor: 2, over: 50}\nlevel: warn\n"
    b"remedy: {text: punish length softly, patch: {length.rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}}\n"
)
LIMIT = b"name: low\nmetric: mine/calls\ntest: {kind: below, limit: 0.5}\nlevel: critical\nwindow: 5\nchance: 1e-3\n"
CSV = (
    b'label,value,problems,samples,seeds,seed_sd,against\nbase,20.5,500,1,,,\n"+ clip, higher",26,500,4,3,1.5,base\n',
    b"label,value\nbase,20.5\nother,21\n",
)
PROBLEMS = b'{"prompt": "1+1=", "answer": "2", "level": 3}\n{"prompt": "2+2=", "answer": 4}\n'
CHATS = (
    b'{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}\n{"prompt": "2+2=", "answer": "4"}\n',
    PROBLEMS,
)
TOKENS = json.dumps({"tokens": [
    {"name": "ana", "scope": "run", "created": "2026-01-02", "hash": "0" * 64},
    {"name": "ci", "scope": "read", "created": "2026-01-02", "hash": "a" * 64},
]}).encode()  # fmt: skip
SCRIPT = b"""set -x
rate=1e-6
files="['/data/a.parquet', '/data/b.parquet']"
args=(data.train_batch_size=$((4 * 16)) "actor_rollout_ref.actor.optim.lr=$rate")
args+=(actor_rollout_ref.actor.ppo_mini_batch_size=32)
if [ $# -gt 0 ]; then n=4; fi
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files="$files" \\
  "${args[@]}" actor_rollout_ref.rollout.n=${n:-8} +a.b=[1,{x:'y'}] data.max_response_length=1024 $@
"""
HYDRA = (
    b"data: {train_batch_size: 64, max_response_length: 512, longest: '${data.max_response_length}'}\n"
    b"algorithm: {adv_estimator: rloo}\nactor_rollout_ref:\n  actor: {ppo_mini_batch_size: 32, clip_ratio_high: 0.28}\n"
    b"  rollout: {n: 8, temperature: 1.0, val_kwargs: {n: 4}}\ntrainer: {total_training_steps: 50, test_freq: 5}\n"
)
GRPO = (
    b"loss_type: dapo\nlearning_rate: 1.0e-6\nnum_generations: 8\nepsilon_high: 0.28\nbeta: 0.01\nreport_to: none\n"
    b"max_steps: 50\neval_steps: 10\nsync_ref_model: true\ndataset_name: a/b\nscale_rewards: batch\n"
)
REFUSAL = {
    "code": "P200", "exit_code": 2, "message": "there is a mistake",
    "problems": [{"message": "unknown key", "path": "base.set", "line": 3, "column": 7}],
}  # fmt: skip
NAMES = (
    "study.yaml", "beside/mine.py", "beside/sub/__init__.py", "beside/../evil.py", "../evil.py", "/tmp/evil.py",
    "beside", "beside/a.py/b.py", "beside/a.py", "answer.json", "report/report.md", "report/../../evil", "report",
    "report/a\0b",
    "report/" + "x" * 300, "beside/" + "x/" * 200 + "a.py", "beside/.py", "beside/\u00e9.py", "report/-\n",
    "manifest.json", "store.json",
)  # fmt: skip


def bundle(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files with any names; its hashes fit."""
    raw = io.BytesIO()
    listed = tuple(Member(name=n, size=len(d), sha256=hashlib.sha256(d).hexdigest()) for n, d in files.items())
    own = Manifest(study="travels", paribus="0", files=listed).to_json()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in {"manifest.json": own, **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


STUDY = bundle({"study.yaml": b"study: x\n", "beside/mine.py": b"def short(completions): return [1.0]\n"})
ANSWER = b'{"text": "x\\n", "notes": ["y"], "paths": ["report.md"]}'
REPORT = bundle({"answer.json": ANSWER, "report/report.md": b"# x\n", "report/t/a.tex": b"t"})


def bundles(files: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Return archives whose hashes fit, with names and contents that a writer of Paribus would not give them."""
    content = st.one_of(
        st.binary(max_size=40), st.randoms(use_true_random=True).map(lambda chance: damaged(list(files), chance))
    )
    name = st.one_of(st.sampled_from(NAMES), st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
    return st.dictionaries(name, content, min_size=1, max_size=4).map(bundle)


def _audit(path: Path) -> None:
    table = read_table(path)
    found = audit(table, (0.5,))
    "".join([*conclusions(found), *facts(table), markdown(found), html_page(found)]).encode()


def _rule(path: Path) -> None:
    rule = read_rule(path)
    values = (math.inf, 1e308, 0.0, -1.0, math.nan)
    lines = [MetricLine(step=s, time_ms=s, values={rule.metric: values[s % 5]}) for s in range(30)]
    setting = Setting(profile=load_profile("default"), planned=len(lines), own=own_detectors((rule,)))
    json.dumps([plain(f) for f in judge_lines(setting, lines)], ensure_ascii=False).encode()


def _config_of(trainer: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        text = study_text("x", trainer, _trl([str(path)], 1) if trainer == "trl" else _verl([str(path)]))
        assert all(not line.startswith("health") for line in text.splitlines()), text
        if zlib.crc32(text.encode()) % 8 == 0:  # an eighth is a study that is loaded, or is refused as one
            written = path.with_name("study.yaml")
            put(written, text.encode())
            load_study(written)

    return read


def _study(path: Path) -> None:
    there = path.parent / "unpacked"
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir()
    assert unpack_study(path, there) == there / "study.yaml"
    assert not [p for p in there.rglob("*") if p.is_symlink()]


def _report(path: Path) -> None:
    out = path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    unpack_report(path.read_bytes(), out)


def _dataset(path: Path) -> None:
    task = DatasetTask(train=Source(path=str(path)), heldout=Source(path=str(path)))
    found = entries_of(task, "train", columns=True)
    assert all(fault.replace("\n", "").isprintable() and len(fault) < 2000 for fault in found.faults), found.faults


def _refused(path: Path) -> None:
    try:
        error_from_json(fields(parse_json(path.read_bytes(), str(path))), "study.yaml")
    except ValueError as error:
        raise ParibusError("no answer of Paribus") from error


TABLES = tuple((data_root("ablations") / "published").glob("dapo_table1.yaml"))
KINDS = {
    "rule": Kind("x.yaml", (RULE, LIMIT, json.dumps(yaml.safe_load(RULE)).encode()), _rule),
    "published table": Kind(
        "x.yaml", (TABLES[0].read_bytes(), json.dumps(yaml.safe_load(TABLES[0].read_bytes())).encode()), _audit
    ),
    "published CSV": Kind("x.csv", CSV, _audit),
    "script of verl": Kind("x.sh", (SCRIPT,), _config_of("verl"), named=False),
    "configuration of verl": Kind(
        "x.yaml", (HYDRA, json.dumps(yaml.safe_load(HYDRA)).encode()), _config_of("verl"), named=False
    ),
    "configuration of TRL": Kind(
        "x.yaml", (GRPO, json.dumps(yaml.safe_load(GRPO)).encode()), _config_of("trl"), named=False
    ),
    "problems": Kind("x.jsonl", (PROBLEMS,), lambda path: Jsonl(JsonlTask(train=str(path), heldout=str(path)))),
    "dataset": Kind("x.jsonl", CHATS, _dataset),
    "tokens": Kind("tokens.json", (TOKENS,), lambda path: Tokens(path.parent).all()),
    "study that was sent": Kind("x.tar", (STUDY,), _study, made=bundles((STUDY, RULE))),
    "report that was sent": Kind("x.tar", (REPORT,), _report, named=False, made=bundles((REPORT, TOKENS))),
    "refusal of a server": Kind("x.json", (json.dumps(REFUSAL).encode(),), _refused, named=False),
}


@pytest.mark.parametrize("name", KINDS)
def test_any_bytes_give_values_or_one_error(name: str, tmp_path: Path) -> None:
    """The error is one of ours, fits on a terminal, and is no longer than what somebody reads."""
    check_kind(name, KINDS[name], tmp_path)
