"""The documentation as a site: links that leave docs/, and that every page can be found."""

import importlib.util
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site():
    """docs/site.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("link", "repository", "shown"),
    [
        ("[a](studies.md#seeds)", "", "[a](studies.md#seeds)"),
        ("[a](decisions/README.md)", "", "[a](decisions/index.md)"),
        ("[a](README.md#x)", "", "[a](index.md#x)"),
        ("[a `b`](../platform/x.py)", "", "a `b`"),
        ("[a](../platform/x.py)", "https://h.example/main/", "[a](https://h.example/main/platform/x.py)"),
        ("[a](generate.py)", "https://h.example/main", "[a](https://h.example/main/docs/generate.py)"),
        ("[a](https://h.example/x)", "", "[a](https://h.example/x)"),
        ("[a](#here)", "", "[a](#here)"),
        ("![a](images/x.png)", "", "![a](images/x.png)"),
        ("```sh\n[a](../x.py)\n```", "", "```sh\n[a](../x.py)\n```"),
    ],
)
def test_links_that_leave_the_pages_lead_to_the_repository(site, link, repository, shown):
    """A link to a page or picture stays; one to code leads to the repository or is text; code blocks stay."""
    assert site.site_page(link, Path("page.md"), repository) == shown


def test_every_page_is_in_the_navigation(site, tmp_path):
    """The list of mkdocs.yml names all pages but single decisions and examples, and nothing that is not there."""
    site.write_site(tmp_path)
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = [page for section in sections for pages_of in section.values() for page in pages_of]
    assert len(named) == len(set(named))
    assert set(named) - pages == set()
    assert {page for page in pages - set(named) if not page.startswith(("decisions/0", "examples/"))} == set()
    assert all("](../../" not in (tmp_path / page).read_text() for page in named if page.startswith("howto/"))
