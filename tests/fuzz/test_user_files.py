"""Whatever bytes a file that a user names holds, its reader returns values or one error that says so.

Files of runs have `unit/run_folder/test_any_bytes.py`, archives `unit/archive/test_archives.py`. Hypothesis chooses
texts, bytes and the seed of the damage. ``make test-fuzz N=100000 SEED=1`` reads more of each kind.
"""

from __future__ import annotations

import gzip
import json
import zlib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from random import Random

import pytest
import yaml

from paribus.contract import runner
from paribus.engines import options
from paribus.engines.ray.options import RayOptions
from paribus.engines.slurm.script import SlurmOptions
from paribus.errors import ParibusError
from paribus.health.finding import plain
from paribus.health.import_logs import read_log
from paribus.health.judge import judge_log
from paribus.health.profile import load_profile
from paribus.home import data_root
from paribus.recipe.coefficients import read_responses
from paribus.recipe.presets import read_preset
from paribus.study.load import load_study
from paribus.yaml_file.document import plain as plain_yaml
from paribus.yaml_file.document import read_document
from support.confined import confined
from support.damage import damaged
from support.kinds import Kind, check_kind

STATE = {
    "log_history": [
        {"step": 1, "entropy": 0.5, "completions/clipped_ratio": 0.1, "epoch": 0.1, "reward": 0.25},
        {"step": 2, "entropy": 0.4, "reward": 1.0, "completions/clipped_ratio": 0.2, "grad_norm": "nan"},
        {"step": 2, "eval_reward": 0.7},
    ]
}
LINES = b"".join(json.dumps({"step": n, "data": {"actor/entropy": 1 / (n + 1), "critic/rewards/mean": 0.1}}).encode()
                 + b"\n" for n in range(9))  # fmt: skip
VERL = b"".join(
    b"(TaskRunner pid=7) step:%d - actor/entropy:0.%d - critic/rewards/mean:np.float64(0.25) - x:1\n" % (n, n)
    for n in range(1, 9)
)
PRINTED = b"".join(b"{'loss': 0.1, 'reward': 0.%d, 'entropy': 0.5, 'epoch': 0.%d}\n 50%%|##  |\r" % (n, n)
                   for n in range(1, 9))  # fmt: skip
TABLES = (
    b"step,entropy,kl,note\n1,0.5,,x\n2,,0.1,y\n",
    "\ufeffstep;entropy;kl\r\n1;0,5;0,1\r\n".encode(),
    b"key,timestamp,step,value\nentropy,1,1,0.5\nentropy,2,2,0.25\n",
    b'"Step","run-1 - actor/entropy","run-1 - actor/entropy__MIN"\n1,0.5,0.5\n2,0.25,0.25\n',
)
RESPONSES = (
    b'{"group": "1+1=", "correct": true, "logp_old": [-0.1, -2.0], "tokens": ["2", "."]}\n'
    b'{"group": "1+1=", "correct": false, "length": 3, "truncated": true}\n'
)
ENGINES = (
    b"slurm: {partition: gpu, jobs: 4, time: '1:00:00', extra: [--qos=high]}\n"
    b"ray: {address: auto, jobs: 8, resources: {big: 1.5}}\n"
)
PROFILE = (
    b"extends: default\nversion: 2\nabout: stricter\n"
    b"thresholds:\n  entropy_collapse: {warn: {value: 0.1, source: ours}}\n"
)
SIGNS = (
    b"a: &x [1, 2.5, 'it''s', null]\nb: *x\n? c\n: |\n  text\n  more\nd: >-\n  folded\n",
    b'- {a: 1, b: [c, d]}\n- "\\u0041\\n"\n# comment\n- 7\n',
)


def _judge(path: Path) -> None:
    log = read_log(path)
    if zlib.crc32(repr(log.lines[-3:]).encode()) % 8:
        return  # an eighth is judged, which takes ten times as long as reading
    found = judge_log(load_profile("default"), log)
    json.dumps([found.status, found.sentence, *(plain(f) for f in found.findings)], ensure_ascii=False).encode()


def _load(path: Path) -> None:
    loaded = load_study(path)
    assert len(loaded.rows) >= 0


def _yaml(folder: str, *names: str) -> tuple[bytes, ...]:
    """Return files that come with Paribus, and the same as JSON, which is YAML: there single values are damaged."""
    texts = [(data_root("ablations") / folder / f"{name}.yaml").read_bytes() for name in names]
    return (*texts, *(json.dumps(yaml.safe_load(text), default=str).encode() for text in texts))


def _both(text: bytes) -> tuple[bytes, ...]:
    return text, json.dumps(yaml.safe_load(text)).encode()


KINDS = {
    "YAML": Kind("x.yaml", SIGNS, lambda path: plain_yaml(read_document(path).checked())),
    "study": Kind("x.yaml", _yaml("studies", "first", "smoke", "quickstart", "dapo_table1"), _load),
    "preset": Kind("x.yaml", _yaml("recipes", "grpo", "dapo", "ppo"), read_preset),
    "health profile": Kind("x.yaml", _both(PROFILE), lambda path: load_profile.__wrapped__(str(path))),
    "options of Slurm": Kind("x.yaml", _both(ENGINES), lambda path: options.read_options(path, "slurm", SlurmOptions)),
    "options of Ray": Kind("x.yaml", _both(ENGINES), lambda path: options.read_options(path, "ray", RayOptions)),
    "responses": Kind("x.jsonl", (RESPONSES,), read_responses),
    "log of TRL": Kind("trainer_state.json", (json.dumps(STATE).encode(),), _judge),
    "log in JSON lines": Kind("x.jsonl", (LINES,), _judge),
    "console of verl": Kind("x.log", (VERL, LINES), _judge),
    "console of transformers": Kind("x.out", (PRINTED, VERL), _judge),
    "table": Kind("x.csv", TABLES, _judge),
    "table of TensorBoard": Kind("run-x-tag-train_entropy.csv", (b"Wall time,Step,Value\n1.5,1,0.5\n",), _judge),
    "compressed lines": Kind("x.jsonl.gz", (gzip.compress(LINES), gzip.compress(VERL)), _judge),
    "MLflow's file": Kind("run/metrics/entropy", (b"1700 0.5 1\n1701 0.25 2\n",), lambda path: _judge(path.parents[1])),
}


@pytest.fixture(autouse=True)
def installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look once for what is installed: that reads the metadata of each package, and takes longer than most readers."""
    found = cache(entry_points)
    for module in (options, runner):
        monkeypatch.setattr(module, "entry_points", found)


@pytest.mark.parametrize("name", KINDS)
def test_any_bytes_give_values_or_one_error(name: str, tmp_path: Path) -> None:
    """The error is one of ours, fits on a terminal, and is no longer than what somebody reads."""
    check_kind(name, KINDS[name], tmp_path)


def test_damage_is_not_all_refused(tmp_path: Path) -> None:
    """The files are close enough to valid ones to get behind the first check."""
    kind, path, read = KINDS["log in JSON lines"], tmp_path / "x.jsonl", 0
    for number in range(100):
        path.write_bytes(damaged(list(kind.valid), Random(number)))
        try:
            kind.read(path)
            read += 1
        except ParibusError:
            pass
    assert 5 < read < 95


@pytest.mark.slow
def test_a_small_file_that_is_large_without_compression_is_refused_in_little_memory(tmp_path: Path) -> None:
    """A megabyte that is a gigabyte of zeros."""
    path = tmp_path / "x.jsonl.gz"
    packer = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        for _ in range(1100):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())
    assert path.stat().st_size < 2 << 20

    def read() -> None:
        with pytest.raises(ParibusError, match="larger than 1024 MB without compression"):
            read_log(path)

    confined(read, tmp_path, memory=1 << 29)
