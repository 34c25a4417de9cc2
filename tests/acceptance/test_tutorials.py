"""The tutorials, typed from an empty folder: files as the page shows them, commands as they stand, in this order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"(<!-- On a cluster: [^\n]*-->\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.]+)\n")
"""The first line of a block that is a file."""

WRITTEN = {
    "first_ablation": ("reports/ablation/report.html",),
    "own_model_and_reward": ("reports/own-data/report.html",),
    "on_slurm": ("cluster/study.yaml",),
    "reading_a_report": ("reports/reading/report.html", "results/report.html"),
    "a_sick_run": ("reports/sick/report.html",),
}
"""What the commands of a page leave behind, among other things."""

SAID = {
    "first_ablation": ("9 distinct, 6 already recorded",),
    "a_sick_run": ("HUGE_UPDATE",),
}


def test_each_page_is_listed() -> None:
    """No page is forgotten; all but the one for a cluster run whole."""
    assert {page.stem for page in PAGES} == set(WRITTEN)
    assert [p.stem for p in PAGES if any(found[1] for found in BLOCK.finditer(p.read_text()))] == ["on_slurm"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_makes_all_that_it_uses(page: Path, tmp_path: Path, warm_models: Path) -> None:
    """Its commands end without an error, one after the other in one shell, and write what they are to write."""
    pytest.importorskip("torch")
    lines = ["set -e"]
    for on_a_cluster, language, text in BLOCK.findall(page.read_text()):
        if language in ("yaml", "python"):
            name = NAMED.match(text)
            assert name, f"{page.name}: a file begins with `# its name`"
            lines.append(f"cat > {name[1]} <<'END'\n{text}END")
        elif language == "sh" and not on_a_cluster:
            lines.append(text)
    (tmp_path / ".paribus").mkdir()
    (tmp_path / ".paribus" / "cache").symlink_to(warm_models)
    where = {name: value for name, value in os.environ.items() if not name.startswith("PARIBUS_")}
    where |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{where['PATH']}"}
    shown = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=tmp_path, env=where, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, (shown.stdout[-3000:], shown.stderr[-3000:])
    assert "Traceback" not in shown.stderr
    for name in WRITTEN[page.stem]:
        assert (tmp_path / name).is_file()
    for text in SAID.get(page.stem, ()):
        assert text in shown.stdout + shown.stderr
