"""Checks a `paribus` installed from the wheel without any extra: `python installed_wheel.py PATH-OF-PARIBUS`."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PARIBUS = Path(sys.argv[1]).resolve()


def paribus(*arguments: str, code: int = 0, cwd: Path | None = None) -> str:
    """Run the installed program, in an empty folder if no other is named, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PARIBUS), *arguments]
        shown = subprocess.run(command, capture_output=True, text=True, cwd=cwd or folder, check=False)
    assert shown.returncode == code, (arguments, shown.returncode, shown.stdout, shown.stderr)
    assert "Traceback" not in shown.stderr
    return shown.stdout + shown.stderr


data = PARIBUS.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "paribus"
assert (data / "_db_migrations" / "env.py").is_file()
studies = sorted((data / "_ablations" / "studies").glob("*.yaml"))
assert studies

assert "Write a study" in paribus("--help")
assert "dr_grpo" in paribus("recipes")
assert json.loads(paribus("schema"))["$schema"]
for study in studies:
    lacks = study.name.startswith(("dapo_", "tis_", "trl_"))  # data of the user or the hub; a sampler; a trainer
    shown = paribus("plan", str(study), code=2 if lacks else 0)
    refused = any(text in shown for text in ("cannot be run yet", "needs a part", "needs vLLM"))
    assert refused == lacks, shown
    assert lacks or "runs:" in shown
with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    assert "paribus run study.yaml" in paribus("init", "mine", cwd=here)
    assert "6 distinct" in paribus("plan", "study.yaml", cwd=here / "mine")
    assert "not overwritten" in paribus("init", "mine", cwd=here, code=1)
    missing = paribus("run", "study.yaml", cwd=here / "mine", code=1)
    assert "'paribus[train] @ file:///" in missing, missing
    listed = paribus("studies")
    for study in studies:
        assert study.stem in listed
        paribus("studies", "copy", study.stem, cwd=here)
        assert (here / study.name).read_bytes() == study.read_bytes()

# the Python API plans without the part `notebook`, and names it in one line where it is needed
NOTEBOOK = """
import paribus

study = paribus.load("study.yaml")
assert "<table>" in study._repr_html_()
assert paribus.Study("x", base={"preset": "grpo"}, designs={"one": {"kind": "list", "arms": {"-": {}}}}).plan().study
try:
    study.plan().runs()
except paribus.ParibusError as error:
    print(error)
"""
with tempfile.TemporaryDirectory() as folder:
    paribus("studies", "copy", "first", "study.yaml", cwd=Path(folder))
    command = [str(PARIBUS.with_name("python")), "-c", NOTEBOOK]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert shown.returncode == 0, shown.stderr
    (line,) = shown.stdout.splitlines()
    assert line.startswith("A DataFrame needs a part that is not installed. Install it: "), line
    assert "'paribus[notebook] @ file:///" in line, line

# the line that a message prints is typed as it stands
asked = paribus("dashboard", code=1).partition("Install it: ")[2]
limits = {**os.environ, "PIP_CONSTRAINT": str(Path(__file__).parents[2] / "constraints.txt")}
subprocess.run(shlex.split(asked), env=limits, check=True)
assert "needs a part" not in paribus("dashboard", "--export", "pages.html", code=1)

print(f"the bare wheel copies {len(studies)} studies, and its line for a missing part works\n1 passed, 0 failed")
