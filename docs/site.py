"""Copies the pages to build/site-source for the site (`make site`): links that leave docs/ lead to the repository.

In the repository, a link such as `../platform/paribus/x.py` opens the file. A site has no such file: there it leads to
PARIBUS_REPOSITORY, e.g. `https://example.org/paribus/blob/main`, and is plain text if that is not set.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

DOCS = Path(__file__).resolve().parent
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
KEPT = (".md", ".png", ".svg")


def site_page(text: str, page: Path, repository: str) -> str:
    """Return a page as the site has it.

    Args:
        text: the Markdown.
        page: its path from docs/.
        repository: where the files of the repository can be read; empty: nowhere.
    """

    def replaced(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        if ":" in target.split("/")[0] or target.startswith("#"):
            return found[0]
        path, mark, anchor = target.partition("#")
        place = Path(os.path.normpath(page.parent / path))
        if place.parts[:1] == ("..",) or (DOCS / place).suffix not in KEPT:
            outside = os.path.normpath(Path("docs") / place)
            return f"[{words}]({repository.rstrip('/')}/{outside})" if repository else words
        if place.name == "README.md":
            path = path.removesuffix("README.md") + "index.md"
        return f"[{words}]({path}{mark}{anchor})"

    fenced = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in fenced)


def write_site(target: Path, repository: str = "") -> int:
    """Write all pages and pictures below `target`, which is emptied first; return how many pages there are."""
    shutil.rmtree(target, ignore_errors=True)
    pages = 0
    for source in sorted(path for path in DOCS.rglob("*") if path.suffix in KEPT):
        page = source.relative_to(DOCS)
        goal = target / (page.with_name("index.md") if page.name == "README.md" else page)
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            goal.write_text(site_page(source.read_text(), page, repository))
            pages += 1
        else:
            shutil.copyfile(source, goal)
    return pages


if __name__ == "__main__":
    built = DOCS.parent / "build" / "site-source"
    print(f"{write_site(built, os.environ.get('PARIBUS_REPOSITORY', ''))} pages in {built.relative_to(DOCS.parent)}")
