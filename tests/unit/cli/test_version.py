"""`paribus --version` names the commit: that of a checkout, or the one that the package was built from."""

import subprocess

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.version import VERSION, described


@pytest.mark.parametrize(
    ("installed", "shown"),
    [
        ("0.2.0", "0.2.0, built from the tag v0.2.0"),
        ("1.0.0rc2", "1.0.0rc2, built from the tag v1.0.0rc2"),
        ("0.2.1.dev3+g1a2b3c4d5", "0.2.1.dev3+g1a2b3c4d5, built from commit 1a2b3c4d5"),
        ("0.2.1.dev3+g1a2b3c4.d20260102", "0.2.1.dev3+g1a2b3c4.d20260102, built from commit 1a2b3c4 with changes"),
        ("0.1.0.dev0", "0.1.0.dev0, commit unknown"),
        ("0+unknown", "0+unknown, commit unknown"),
    ],
)
def test_a_package_names_what_it_was_built_from(installed, shown, tmp_path):
    """A version made from git says the tag or the commit; one made without git says that it does not know."""
    assert described(installed, checkout=tmp_path) == shown


def test_a_checkout_names_its_commit_and_whether_files_differ(tmp_path):
    """The commit that is checked out now counts, also if tags name it; a changed file is said."""

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one\n")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v3.0.0")
    commit = git("rev-parse", "--short=9", "HEAD")
    assert described("0.1.0", checkout=tmp_path) == f"0.1.0, a checkout of commit {commit}"
    (tmp_path / "file").write_text("two\n")
    assert described("0.1.0", checkout=tmp_path) == f"0.1.0, a checkout of commit {commit} with changes"


def test_a_folder_that_git_does_not_read_falls_back_on_the_version(tmp_path):
    """A `.git` that is broken is no reason to fail, or to name a commit of the folder above."""
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert described("0.2.0", checkout=tmp_path) == "0.2.0, built from the tag v0.2.0"


def test_the_option_prints_it():
    """`paribus --version` prints one line that begins with the version of the package."""
    shown = CliRunner().invoke(paribus, ["--version"])
    assert shown.exit_code == 0
    assert shown.output.startswith(f"paribus {VERSION}, ")
    assert shown.output.count("\n") == 1
