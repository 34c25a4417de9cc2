"""`.ci/release`: what it refuses, and the changelog that it writes. The rest of it is `make test-wheel`."""

import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

Preamble.

## Unreleased

What the first release holds.

## 0.0.1 (2020-01-01)

* Old.
"""


@pytest.fixture(scope="module")
def release():
    """The script as a module."""
    loader = SourceFileLoader("release_script", str(ROOT / ".ci" / "release"))
    module = module_from_spec(spec_from_loader("release_script", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one commit and a fragment of each kind."""
    (tmp_path / "changes").mkdir()
    for name in ("b.new", "a.new", "c.fixed"):
        (tmp_path / "changes" / f"{name}.md").write_text(f"Text of\n{name}.\n")
    (tmp_path / "changes" / "README.md").write_text("# How\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "--all"), ("commit", "-qm", "first")):
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)
    return tmp_path


def test_fragments_become_a_section_and_none_is_lost(release, checkout):
    """The section has what stood under Unreleased, then the fragments by kind; older versions stay."""
    texts = [(release.kind(path), path.read_text()) for path in release.fragments(checkout)]
    text = release.released(CHANGELOG, "0.2.0", texts, "2026-02-03")
    assert "\n## 0.2.0 (2026-02-03)\n\nWhat the first release holds.\n" in text
    assert "New:\n\n* Text of a.new.\n* Text of b.new.\n" in text
    assert "Fixed:\n\n* Text of c.fixed.\n" in text
    assert text.index("## Unreleased") < text.index("## 0.2.0") < text.index("## 0.0.1")
    assert text.endswith("* Old.\n")
    again = release.released(text, "0.3.0", [("gone", "One less.")], "2026-03-03")
    assert again.count("What the first release holds.") == 1
    assert "## 0.3.0 (2026-03-03)\n\nGone:\n\n* One less.\n\n## 0.2.0" in again


def test_everything_against_a_release_is_said_at_once(release, checkout):
    """A wrong version, changed files, a tag that exists and a fragment without a kind are four lines."""
    release.refuse("0.2.0", checkout)
    subprocess.run(["git", "-C", checkout, "tag", "vnext"], check=True)
    (checkout / "changes" / "loud.md").write_text("x")
    with pytest.raises(SystemExit) as error:
        release.refuse("next", checkout)
    lines = str(error.value).splitlines()
    assert lines[0] == "release: `next` is no version: write 1.2.3, or 1.2.3rc1"
    assert any("the checkout has changes" in line for line in lines)
    assert "release: there is a tag vnext already" in lines
    assert any("changes/loud.md: its name must be NAME.KIND.md" in line for line in lines)


def test_the_fragments_here_have_kinds(release):
    """Each file of changes/ says what kind of change it is, so that a release does not stop at it."""
    assert release.strangers(ROOT) == []
    for path in release.fragments(ROOT):
        assert path.read_text().strip().endswith("."), path.name
