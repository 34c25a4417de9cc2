"""Take the pictures of a report that the documentation shows: light, dark, narrow, and as printed.

Usage: python docs/screenshots.py reports/quickstart/report.html. It needs Chromium on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OUT = Path(__file__).parent / "images"
SHOTS = {
    "report-light.png": (1440, 900, False),
    "report-figures.png": (1200, 1700, False),
    "report-dark.png": (1440, 900, True),
    "report-narrow.png": (500, 1000, False),
    "report-print.png": (720, 1000, False),
}
"""File to width, height in pixels and whether the reader prefers dark colours."""

STYLES = {
    "report-figures.png": "section:not(.figure), details, header, aside { display: none }",
}
"""Styles that are added to a copy of the page."""


def main(page: Path) -> None:
    """Write all pictures of one page."""
    browser = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if browser is None:
        sys.exit("Chromium is needed, and is not on the PATH.")
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (width, height, dark) in SHOTS.items():
            copy = Path(folder) / f"{name}.html"
            copy.write_text(styled(page.read_text(encoding="utf-8"), name), encoding="utf-8")
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += ["--blink-settings=preferredColorScheme=0"] if dark else []
            command += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=20000"]
            command += [f"--window-size={width},{height}", f"--screenshot={OUT / name}", copy.as_uri()]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            print(OUT / name)


def styled(page: str, name: str) -> str:
    """Return the page with the style of this picture."""
    if name == "report-print.png":
        return page.replace("@media print", "@media all")
    return page.replace("</style>", f"{STYLES.get(name, '')}</style>", 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
