"""Rules of one's own: what they find, what noise alone raises, and what is said of a file that is no rule."""

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from paribus.contract.rule import HealthRule
from paribus.errors import ParibusError, StudyFileError
from paribus.health.detector import Detector, RuleResult, Setting, finding_of, initial_state, update
from paribus.health.diagnose import DETECTORS, diagnose, judge_lines
from paribus.health.finding import Finding, plain
from paribus.health.own_rules import detector_of, load_detector, own_detectors
from paribus.health.profile import load_profile
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine
from paribus.study import rules as study_rules
from paribus.study.rules import read_rule

LENGTH = "response/length_mean"
RULE = """
name: length_doubles
metric: response/length_mean
test: {kind: grows, factor: 2, over: 50}
level: warn
remedy: {text: punish length, patch: {length.rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}}
"""


def rule(**changes):
    """Return a rule on the length."""
    return HealthRule(**{"name": "mine", "metric": LENGTH, "level": "warn", **changes})


def found(detector, values, chunks=1, recipe=None):
    """Return the finding of a detector on a column of values, judged in so many chunks."""
    setting = Setting(profile=load_profile("default"), recipe=recipe, planned=len(values), own=(detector,))
    lines = [MetricLine(step=s + 1, time_ms=0, values={LENGTH: float(x)}) for s, x in enumerate(values)]
    state = initial_state()
    for part in np.array_split(np.arange(len(lines)), chunks):
        state, _ = update(detector, setting, state, [lines[k] for k in part])
    return finding_of(detector, setting, state)


def autoregressive(rng, count, r):
    """Return noise of variance 1 whose neighbours correlate."""
    drawn = rng.normal(size=count)
    for k in range(1, count):
        drawn[k] = r * drawn[k - 1] + np.sqrt(1 - r * r) * drawn[k]
    return drawn


@pytest.mark.parametrize(
    ("test", "before", "after"),
    [
        ({"kind": "above", "limit": 150.0}, 100, 160),
        ({"kind": "below", "limit": 60.0}, 100, 50),
        ({"kind": "grows", "factor": 2.0, "over": 50}, 100, 230),
        ({"kind": "grows", "factor": 2.0}, 100, 230),
        ({"kind": "shrinks", "factor": 0.5, "over": 50}, 100, 40),
        ({"kind": "rises", "by": 40.0, "over": 50}, 100, 160),
        ({"kind": "falls", "by": 40.0}, 100, 40),
    ],
)
def test_each_test_finds_its_change_where_it_is_and_nothing_in_its_absence(test, before, after):
    """The onset is the step of the change; the sentence holds the means of the two windows; the opposite is fine."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 3, 300)
    values = np.where(np.arange(300) < 150, before, after) + noise
    detector = detector_of(rule(test=test, level="critical"))
    said = found(detector, values)
    assert said.state == "critical"
    assert 146 <= said.step_onset <= 152
    assert said.step_onset < said.step_detected <= 151 + 40
    window = values[said.step_detected - 10 : said.step_detected]
    assert said.numbers["value"] == pytest.approx(window.mean(), rel=1e-6)
    assert f"{window.mean():.3g} (mean of 10 points)" in said.evidence
    assert found(detector, before + noise).state == "ok"
    other_way = np.where(np.arange(300) < 150, before, 2 * before - after) + noise
    assert found(detector, other_way).state == "ok"


def test_a_chunk_more_or_less_changes_nothing():
    """A run is judged while it trains as it is afterwards."""
    values = np.where(np.arange(200) < 90, 100, 260) + np.random.default_rng(1).normal(0, 9, 200)
    detector = detector_of(rule(test={"kind": "grows", "factor": 2.0, "over": 60}))
    assert found(detector, values) == found(detector, values, chunks=37)


@pytest.mark.parametrize("r", [0.0, 0.6])
@pytest.mark.parametrize(
    "test", [{"kind": "above", "limit": 100.0}, {"kind": "rises", "by": 0.0}, {"kind": "falls", "by": 0.0, "over": 50}]
)
def test_a_metric_at_its_limit_fires_as_often_as_stated(test, r):
    """Stated are 5% of the runs; chance alone hardly gives nine of 80."""
    detector = detector_of(rule(test=test, chance=0.05))
    rng = np.random.default_rng([int(10 * r), len(test["kind"])])
    runs = [100 + 5 * autoregressive(rng, 300, r) for _ in range(80)]
    assert sum(found(detector, values).state != "ok" for values in runs) <= 8


def test_one_outlier_raises_nothing():
    """It is in the means of one window."""
    values = np.full(200, 100.0) + np.random.default_rng(2).normal(0, 1, 200)
    values[120] = 5000
    assert found(detector_of(rule(test={"kind": "above", "limit": 110.0})), values).state == "ok"


def test_a_remedy_is_fitted_to_the_recipe(tmp_path):
    """With its patch, as under `tricks`; a run that has it already is not told to try it."""
    (tmp_path / "rule.yaml").write_text(RULE)
    detector = detector_of(read_rule(tmp_path / "rule.yaml"))
    values = np.where(np.arange(200) < 90, 100, 260)
    recipe = Recipe(schedule=Schedule(steps=200))
    [remedy] = found(detector, values, recipe=recipe).remedies
    assert (remedy.text, list(remedy.patch)) == ("punish length", ["length.rule"])
    has = Recipe.model_validate(
        {**recipe.model_dump(), "length": {"rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}}
    )
    assert found(detector, values, recipe=has).remedies == ()


def test_the_status_names_the_rule_and_what_it_was():
    """A rule that is edited is another one; its remedy does not count."""
    profile = load_profile("default")

    def identity(**changes):
        own = (detector_of(rule(test={"kind": "above", "limit": 1.0}, **changes)),)
        return Setting(profile=profile, own=own).identity

    assert identity().startswith(f"{profile.identity}, mine (")
    assert identity() == identity(remedy="try less") != identity(window=11)
    assert Setting(profile=profile).identity == profile.identity


WRONG = """\
name: Length
metric: response/lenght_mean
test: {kind: grows, factor: 0.5}
windw: 10
level: bad
"""


def test_every_mistake_has_its_place(tmp_path):
    """All at once, with what was meant."""
    file = tmp_path / "rule.yaml"
    file.write_text(WRONG)
    with pytest.raises(StudyFileError) as error:
        read_rule(file)
    lines = str(error.value).splitlines()
    assert [line.removeprefix(f"{file}:").split(" ")[0] for line in lines] == ["1:7:", "2:9:", "3:29:", "4:1:", "5:8:"]
    for line, word in zip(lines, ("`Length`", "`response/length_mean`", "> 1", "`window`", "`critical`"), strict=True):
        assert word in line


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ("name: length_doubles\n", "name: truncation\n", "2:7: name: `truncation` is a detector of Paribus"),
        ("over: 50", "over: 19", "4:38: test.over: must be at least twice the window of 10 points, so 20 or more"),
        ("length.rule", "lenght.rule", "6:39: remedy.patch.lenght.rule: "),
        ("kind: grows", "kind: grow", "Did you mean `grows`?"),
        ("kind: grows, ", "", "a test needs a `kind`"),
        ("level: warn\n", "", "`level` is missing"),
    ],
)
def test_what_has_no_meaning_is_refused(tmp_path, change, place, says):
    """Names that are taken, windows that overlap, patches of nothing."""
    assert change in RULE
    (tmp_path / "rule.yaml").write_text(RULE.replace(change, place))
    with pytest.raises(StudyFileError) as error:
        read_rule(tmp_path / "rule.yaml")
    assert says in str(error.value)


def test_a_metric_of_a_runner_is_allowed(tmp_path):
    """Its first part is no canonical one."""
    (tmp_path / "rule.yaml").write_text(RULE.replace("response/length_mean", "mine/tool_calls"))
    assert read_rule(tmp_path / "rule.yaml").metric == "mine/tool_calls"


def long(run):
    """Judge by the newest length."""
    if run.newest(LENGTH) > 999:
        raise ZeroDivisionError("a mistake")
    return RuleResult(state="warn" if run.newest(LENGTH) > 200 else "ok", evidence="long")


LONG = Detector(name="long", looks_for="long responses", needs=(LENGTH,), rule=long, points=(2, 2))
NOTHING = "no detector"


def test_a_package_brings_a_detector(monkeypatch):
    """By name; what it does wrong is its evidence."""
    entries = [
        EntryPoint(name="long", value=f"{__name__}:LONG", group="paribus.detectors"),
        EntryPoint(name="nothing", value=f"{__name__}:NOTHING", group="paribus.detectors"),
    ]
    monkeypatch.setattr(study_rules, "installed", lambda: entries)
    monkeypatch.setattr(EntryPoint, "load", lambda entry: {"long": LONG, "nothing": NOTHING}[entry.name])
    [detector] = own_detectors(("long",))
    assert found(detector, [100] * 20 + [300] * 20).step_onset == 21
    said = found(detector, [300] * 5 + [1000])
    assert (said.state, said.step_onset) == ("unknown", None)
    assert said.evidence == "the detector failed at step 6: ZeroDivisionError('a mistake')"
    with pytest.raises(ParibusError, match=r"must be a `paribus.health.detector.Detector`"):
        load_detector("nothing")
    with pytest.raises(ParibusError, match=r"no package brings a detector `lon`\. Did you mean `long`\?"):
        load_detector("lon")


def test_the_package_of_the_page_is_found_where_it_is_installed(tmp_path, monkeypatch):
    """The code of the page, as a package that pip has installed: found by name, with its version, and it judges."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "rules.md").read_text()
    (tmp_path / "my_detectors.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    [entry] = re.findall(r"```toml\n\[project.entry-points.\"(.*?)\"\]\n(.*?)\n```", page, re.S)
    about = tmp_path / "my_detectors-2.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-detectors\nVersion: 2.5\n")
    (about / "entry_points.txt").write_text("[{}]\n{}\n".format(entry[0], entry[1].replace('"', "")))
    monkeypatch.syspath_prepend(str(tmp_path))
    detector = load_detector("shrugs")
    assert detector.version == "2.5"
    setting = Setting(profile=load_profile("default"), recipe=None, planned=40, own=(detector,))
    lengths = {"response/length_mean_correct": 30.0, "response/length_mean_incorrect": 20.0}
    found = judge_lines(setting, [MetricLine(step=s, time_ms=0, values=lengths) for s in range(1, 41)])
    [said] = [f for f in found if f.detector == "shrugs"]
    assert (said.state, said.evidence) == ("warn", "right answers have 30 tokens, wrong ones 20")


def installed_detector(monkeypatch, **changes):
    """Return a detector as a package brings it."""
    entry = EntryPoint(name="bad", value=f"{__name__}:BAD", group="paribus.detectors")
    monkeypatch.setattr(study_rules, "installed", lambda: [entry])
    detector = Detector(**{"name": "bad", "looks_for": "anything", "needs": (LENGTH,), "points": (1, 1), **changes})
    monkeypatch.setattr(EntryPoint, "load", lambda entry: detector)
    return own_detectors(("bad",))[0]


def keeps_a_lock(run):
    """Remember what cannot be copied."""
    run.memory["lock"] = Lock()


@pytest.mark.parametrize(
    ("rule_of_package", "says"),
    [
        (lambda run: "warn", "not a RuleResult or None"),
        (lambda run: RuleResult(state="bad"), "not one of ok, note, warn, critical"),
        (lambda run: RuleResult(state="warn", numbers={"share": "many"}), "could not convert"),
        (lambda run: RuleResult(state="warn", numbers={"share": float("nan")}), "must be finite"),
        (lambda run: RuleResult(state="warn", numbers=[1.0]), "no attribute"),
        (lambda run: RuleResult(state="warn", evidence=None), "must be texts"),
        (lambda run: RuleResult(state="warn", onset="early"), "TypeError"),
        (keeps_a_lock, "TypeError"),
    ],
)
def test_a_detector_that_fails_is_unknown_and_the_others_judge_on(monkeypatch, rule_of_package, says):
    """Its error is its evidence, however many lines are judged at once."""
    detector = installed_detector(monkeypatch, rule=rule_of_package)
    for chunks in (1, 3):
        said = found(detector, [100] * 9, chunks=chunks)
        assert said.state == "unknown"
        assert "failed at step 1: " in said.evidence
        assert says in said.evidence
    setting = Setting(profile=load_profile("default"), own=(detector,))
    assert len(judge_lines(setting, [MetricLine(step=1, time_ms=0, values={LENGTH: 1.0})])) == len(DETECTORS) + 1


def test_a_detector_fails_in_what_is_beside_its_rule(monkeypatch):
    """Whether it applies, and its points."""
    for changes in ({"why_not": lambda recipe: recipe.nothing}, {"points": (1,)}, {"keep": "long"}):
        detector = installed_detector(monkeypatch, rule=lambda run: RuleResult(state="warn"), **changes)
        said = found(detector, [100] * 9, recipe=Recipe(schedule=Schedule(steps=9)))
        assert (said.state, "the detector failed" in said.evidence) == ("unknown", True)


def test_numbers_of_numpy_are_written_as_numbers(monkeypatch):
    """`health.json` is JSON."""
    result = RuleResult(state="warn", numbers={"share": np.float32(0.5)}, onset=np.int64(3))
    said = found(installed_detector(monkeypatch, rule=lambda run: result), [100] * 9)
    assert json.loads(json.dumps(plain(said)))["numbers"] == {"share": 0.5}


@pytest.mark.parametrize("test", [{"kind": "above", "limit": 150.0}, {"kind": "grows", "factor": 2.0}])
def test_values_whose_sum_overflows_are_not_judged(test):
    """Each is finite."""
    said = found(detector_of(rule(test=test)), [1e308] * 60)
    assert (said.state, said.evidence) == ("unknown", "too few points to judge")
    assert found(detector_of(rule(test=test)), [100.0] * 60 + [1e308] * 60).state == "ok"


def test_a_package_replaces_no_detector_of_paribus(monkeypatch):
    """A study would lose the one of Paribus without a word."""
    entry = EntryPoint(name="nan", value=f"{__name__}:NAN", group="paribus.detectors")
    monkeypatch.setattr(study_rules, "installed", lambda: [entry])
    with pytest.raises(ParibusError, match="`nan` is a detector of Paribus"):
        study_rules.find_installed("nan")


def test_a_rule_that_is_fine_makes_no_run_healthy():
    """Whether there was enough data is for the detectors of Paribus to say."""
    quiet = [Finding(detector=d.name, state="unknown" if d.metrics else "ok") for d in DETECTORS]
    said = diagnose([*quiet, Finding(detector="mine", state="ok")])
    assert (said.status, said.sentence.partition(" (")[0]) == ("unknown", "Too little data to judge")


def test_windows_that_share_points_are_not_compared():
    """With a point every 20 steps, 60 steps are three points."""
    detector = detector_of(rule(test={"kind": "rises", "by": 1.0, "over": 60}, window=5))
    values = np.where(np.arange(100) < 50, 100.0, 300.0)
    for every, state in ((20, "unknown"), (5, "warn")):
        lines = [MetricLine(step=every * (k + 1), time_ms=0, values={LENGTH: x}) for k, x in enumerate(values)]
        setting = Setting(profile=load_profile("default"), planned=2000, own=(detector,))
        said = finding_of(detector, setting, update(detector, setting, initial_state(), lines)[0])
        assert said.state == state


@pytest.mark.parametrize(
    ("test", "least"),
    [
        ({"kind": "above", "limit": 9.0}, 22),
        ({"kind": "rises", "by": 9.0}, 32),
        ({"kind": "rises", "by": 9.0, "over": 50}, 72),
    ],
)
def test_a_rule_that_cannot_have_fired_yet_is_unknown(test, least):
    """`ok` with fewer points would say that the rule had looked."""
    detector = detector_of(rule(test=test))
    assert [found(detector, np.ones(count)).state for count in (least - 1, least)] == ["unknown", "ok"]
    assert found(detector, np.ones(least - 1)).evidence == "too few points to judge"
