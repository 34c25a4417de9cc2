"""Checks a `paribus` installed from the wheel without any extra: `python installed_wheel.py PATH-OF-PARIBUS`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PARIBUS = Path(sys.argv[1]).resolve()


def paribus(*arguments: str, code: int = 0) -> str:
    """Run the installed program in an empty folder and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        shown = subprocess.run([str(PARIBUS), *arguments], capture_output=True, text=True, cwd=folder, check=False)
    assert shown.returncode == code, (arguments, shown.returncode, shown.stdout, shown.stderr)
    assert "Traceback" not in shown.stderr
    return shown.stdout + shown.stderr


data = PARIBUS.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "paribus"
assert (data / "_db_migrations" / "env.py").is_file()
studies = sorted((data / "_ablations" / "studies").glob("*.yaml"))
assert studies

assert "Commands" in paribus("--help")
assert "dr_grpo" in paribus("recipes")
assert json.loads(paribus("schema"))["$schema"]
for study in studies:
    if study.name != "dapo_table1.yaml":  # its data are for the user to supply
        assert "runs:" in paribus("plan", str(study))
assert "paribus[train]" in paribus("run", str(data / "_ablations/studies/smoke.yaml"), code=1)
print(
    f"the bare wheel plans {len(studies)} shipped studies and names the extra that training needs\n1 passed, 0 failed"
)
