"""The YAML of the documentation works as it stands: each block is planned, and its text names the warnings."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from paribus.contract import load_runner
from paribus.engines.options import read_options
from paribus.engines.ray.engine import RayOptions
from paribus.engines.slurm.script import SlurmOptions
from paribus.health.profile import load_profile
from paribus.home import data_root
from paribus.study.expand import PlanDraft, draft_plan
from paribus.study.load import load_study
from paribus.study.rules import read_rule
from paribus.study.spec import Study
from paribus.yaml_file.document import parse_document, plain
from paribus_runners.program.mapping import read_mapping

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
GUIDE = "docs/studies.md"
"""Its first block is the study that the other blocks are parts of, as its text says."""

OPTIONS = {"ray": RayOptions, "slurm": SlurmOptions}
ALWAYS = {"seeds"}
"""Warnings that every plan has: no text repeats them."""


@dataclass(frozen=True)
class Block:
    """A block of YAML.

    Attributes:
        place: page and line.
        content: the YAML.
        text: the section around it, down to the next heading.
    """

    place: str
    content: str
    text: str

    @property
    def keys(self):
        """Its top-level keys."""
        return set(self.values)

    @property
    def values(self):
        """Its plain values."""
        return plain(parse_document(self.content, self.place).checked())


def blocks() -> Iterator[Block]:
    """Yield every block of YAML of README and docs."""
    for page in PAGES:
        content = page.read_text()
        for found in re.finditer(r"^( *)```ya?ml\n(.*?)^ *```$", content, re.MULTILINE | re.DOTALL):
            lines = [line.removeprefix(found[1]) for line in found[2].splitlines(keepends=True)]
            before, after = content[: found.start()], content[found.end() :]
            parts = (HEADING.split(before)[-1], found[2], HEADING.split(after)[0])
            place = f"{page.relative_to(ROOT)}:{before.count(chr(10)) + 1}"
            yield Block(place=place, content="".join(lines), text="".join(parts))


BLOCKS = tuple(blocks())
PARTS = {*Study.model_fields, "native"}
INSTALLED = "docs/howto/runner.md"
"""Its study names a runner that its own test installs, and runs."""


@cache
def guide() -> Block:
    """Return the study of the guide."""
    return next(block for block in BLOCKS if block.place.startswith(GUIDE))


def planned(block: Block, folder: Path) -> PlanDraft:
    """Plan a block: a study as it stands, a part of one in place of what the guide's study has under the same keys."""
    path = folder / "study.yaml"
    rest = {} if "study" in block.keys else {k: v for k, v in guide().values.items() if k not in block.keys}
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in rest.items()) + block.content)
    study = load_study(path, installed=True)
    return draft_plan(study, load_runner(study.spec.runner.kind))


def test_there_are_studies_and_parts_of_studies() -> None:
    """The blocks are found: the README's, the guide's, and pieces of studies."""
    whole = [block.place for block in BLOCKS if "study" in block.keys]
    assert any(place.startswith("README.md") for place in whole)
    assert guide().place in whole
    assert len(BLOCKS) >= len(whole) + 8


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.keys & PARTS and not b.place.startswith(INSTALLED)], ids=lambda b: b.place
)
def test_each_study_in_the_documentation_can_be_run(block, tmp_path, monkeypatch) -> None:
    """It has no fault, and its text names every warning of its plan; a part only what the guide's study has not."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / block.place.rpartition(":")[0]
    for name, source in re.findall(r"```python\n# (\w+\.py)(?::.*?)?\n(.*?)```", page.read_text(), re.DOTALL):
        (tmp_path / name).write_text(source)  # beside the study, as the page says
    for name, source in re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", page.read_text(), re.DOTALL):
        (tmp_path / name).write_text(source)
    (tmp_path / "data").mkdir()
    for name in ("train", "heldout"):
        lines = [json.dumps({"prompt": f"{name} {i} + 1", "answer": i + 1}) for i in range(1000)]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(lines))
    draft = planned(block, tmp_path)
    assert not draft.unsupported
    # a model to fill in, an environment to install, a runner that plans alone, and an earlier stage
    missing = ("path/or/hub-name", "paribus runners install", "does not start verl", "looked up in a home folder")
    assert all(any(part in message for part in missing) for message in draft.unread), draft.unread
    silent = set(ALWAYS)
    if "study" not in block.keys:
        silent |= {warning.code for warning in planned(guide(), tmp_path).plan.warnings}
    for warning in draft.plan.warnings:
        assert warning.code in silent or f"`{warning.code}`" in block.text, f"{block.place}: {warning}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if not b.keys & PARTS], ids=lambda b: b.place)
def test_every_other_block_is_a_file_that_is_read(block, tmp_path) -> None:
    """Options of engines, a profile of thresholds, a rule, or a mapping of a script's log."""
    path = tmp_path / "file.yaml"
    path.write_text(block.content)
    if "thresholds" in block.keys:
        assert load_profile(str(path)).name
    elif "metric" in block.keys:
        assert read_rule(path).name
    elif "step" in block.keys:
        assert read_mapping(block.content, "file.yaml").metrics
    else:
        (engine,) = block.keys
        assert read_options(path, engine, OPTIONS[engine]) != OPTIONS[engine]()


def test_the_readme_shows_the_study_that_make_quickstart_runs(tmp_path) -> None:
    """The report under it is of these arms and seeds."""
    block = next(block for block in BLOCKS if block.place.startswith("README.md"))
    quickstart = load_study(data_root("ablations") / "studies" / "quickstart.yaml")
    assert "paribus run ablations/studies/quickstart.yaml" in (ROOT / "Makefile").read_text()
    fingerprint = draft_plan(quickstart, load_runner("native")).plan.fingerprint
    assert planned(block, tmp_path).plan.fingerprint == fingerprint


def test_the_readme_quotes_the_answer_of_the_report() -> None:
    """The lines that it quotes are the answer of the example's report, word for word."""
    lines = (ROOT / "README.md").read_text().splitlines()
    quoted = " ".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    report = (ROOT / "docs/examples/quickstart/report.md").read_text().splitlines()
    assert f"**{quoted}**" in report
