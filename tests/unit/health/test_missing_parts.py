"""A detector or profile that is gone when a run is judged is a finding that names it; the others judge on."""

from importlib.metadata import EntryPoint

import pytest

from paribus.contract import Evaluate, Job
from paribus.errors import StudyFileError
from paribus.health.finding import read_health
from paribus.health.judge import LiveJudge, Records, judge_run
from paribus.health.own_rules import setting_of
from paribus.health.profile import load_profile
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.study import rules


def lines(count=40):
    """Return a course that all needed metrics stand in."""
    values = {"reward/mean": 0.5, "response/length_mean": 20.0, "policy/entropy": 1.0}
    return tuple(MetricLine(step=s, time_ms=s, values=values | {"loss/total": float("nan")}) for s in range(count))


def test_a_detector_that_is_not_installed_any_more_is_unknown_and_named():
    """Nothing else of the diagnosis changes, and it names what to do."""
    records = Records(lines=lines(), evaluations=(), samples=(), trouble="")
    profile, own = setting_of("default", ("gone",))
    found = judge_run(profile, records, recipe=Recipe(), primary="pass@1", own=own)
    [gone] = [f for f in found.findings if f.detector == "gone"]
    assert (gone.state, "no package brings a detector `gone`" in gone.evidence) == ("unknown", True)
    assert "gone (missing)" in gone.profile
    alone = judge_run(profile, records, recipe=Recipe(), primary="pass@1")
    assert [(f.detector, f.state) for f in found.findings[:-1]] == [(f.detector, f.state) for f in alone.findings]
    assert found.status == alone.status


def test_a_package_that_cannot_be_imported_is_unknown_with_its_error(monkeypatch):
    """The entry point is there, its module is not."""
    entry = EntryPoint(name="broken", value="no_such_module:detector", group=rules.GROUP)
    monkeypatch.setattr(rules, "installed", lambda: [entry])
    _, [broken] = setting_of("default", ("broken",))
    assert "cannot be loaded: ModuleNotFoundError" in broken.missing


@pytest.mark.parametrize(
    "content", [None, "version: 1\nabout: x\nextends: default\nthresholds: {no_such: {warn: 1}}\n"]
)
def test_a_profile_that_is_gone_or_wrong_now_is_a_finding_while_the_run_trains(tmp_path, content):
    """`health.json` has it, and the default thresholds count."""
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content)
    folder = RunFolder(tmp_path / "a1")
    folder.path.mkdir()
    job = Job(
        run="f" * 64,
        study="small",
        arm="base",
        runner="fake",
        seed=0,
        token=1,
        recipe=Recipe(),
        evaluate=Evaluate(),
        cache="cache",
        profile=str(file),
    )
    LiveJudge(folder, job).take(lines())
    known = read_health(folder)
    [profile] = [f for f in (*known.raised, *known.others) if f.detector == "profile"]
    assert (profile.state, "mine.yaml" in profile.evidence) == ("unknown", True)
    assert "the default thresholds count" in profile.evidence
    assert known.profile == f"{load_profile('default').identity}, profile (missing)"


def test_a_profile_must_extend_one_of_paribus(tmp_path):
    """Alone, it would lack thresholds that detectors need."""
    (tmp_path / "mine.yaml").write_text("version: 1\nabout: x\nthresholds: {}\n")
    with pytest.raises(
        StudyFileError, match="`extends` is missing: a profile changes thresholds of one of base_model, default"
    ):
        load_profile(str(tmp_path / "mine.yaml"))
