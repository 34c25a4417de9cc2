"""Profiles, remedies, the order of causes, and the statistics under the rules."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from paribus.errors import StudyFileError
from paribus.health.context import ALONE
from paribus.health.diagnose import DETECTORS, diagnose
from paribus.health.finding import Finding
from paribus.health.profile import load_profile, profile_names
from paribus.health.remedies import catalogue, patched, remedies_of
from paribus.health.signals import of_texts, repetitive, with_signals
from paribus.health.window import roughness, trend
from paribus.recipe.presets import load_preset, preset_names
from paribus.run_folder.folder import HELDOUT, TRAIN, Evaluation, MetricLine
from paribus.run_folder.samples import Sample
from paribus_dashboards.health.view import headline


def found(detector, state, onset):
    """Return a finding."""
    return Finding(
        detector=detector, state=state, step_onset=onset, step_detected=onset + 9, evidence=f"{detector} says so"
    )


def test_the_first_critical_finding_is_told_with_what_came_before():
    """What began before may be the cause, however mild; a known course gets its name only in its order."""
    said = diagnose(
        [found("grad_spike", "critical", 90), found("mismatch", "warn", 40), found("reward_noise", "warn", 120)]
    )
    assert said.status == "critical"
    assert [f.detector for f in said.raised] == ["mismatch", "grad_spike", "reward_noise"]
    assert said.first == said.raised[1]
    assert said.sentence.startswith(
        "Critical: grad_spike since step 90: grad_spike says so; before it mismatch (warn, step 40); "
        "then reward_noise (warn, step 120)."
    )
    assert "sampler and learner disagree" in said.sentence
    reverse = diagnose([found("grad_spike", "critical", 30), found("mismatch", "warn", 40)])
    assert reverse.sentence.startswith("Critical: grad_spike")
    assert "disagree" not in reverse.sentence


def test_what_began_later_is_not_said_to_come_before():
    """A cause that is listed first, since both began within a window, began later all the same."""
    said = diagnose([found("entropy_collapse", "warn", 7), found("reward_crash", "critical", 3)], near=5)
    assert [f.detector for f in said.raised] == ["entropy_collapse", "reward_crash"]
    assert "; then entropy_collapse (warn, step 7)" in said.sentence
    assert "before it" not in said.sentence
    assert headline(said) == f"Critical: reward crash since step 3. {ALONE}"


def test_an_effect_does_not_lead_before_its_cause():
    """Equal rewards are what a broken policy gets: a warning of what broke it leads, unless it came later or was over.

    Found in a run of TRL at a hundred times its learning rate: the entropy rose from step 2 on, and from step 3 on all
    rewards were equal, which was the headline.
    """
    effect = found("zero_variance", "critical", 3)
    said = diagnose([found("entropy_explosion", "warn", 2), effect])
    assert said.sentence.startswith("Critical: entropy_explosion since step 2: ")
    assert said.sentence.endswith("; then zero_variance (critical, step 3).")
    assert (said.status, said.first.detector) == ("critical", "entropy_explosion")
    over = replace(found("entropy_explosion", "warn", 1), step_cleared=2)
    for other in (over, found("entropy_explosion", "warn", 9), found("truncation", "warn", 2)):
        assert diagnose([other, effect]).first == effect
    crash = found("reward_crash", "critical", 3)
    assert diagnose([found("entropy_explosion", "warn", 2), crash, effect]).first == crash
    swings = found("reward_noise", "warn", 40)
    assert diagnose([swings, found("reward_hacking", "critical", 60)]).first == swings
    assert diagnose([swings, found("reward_hacking", "critical", 30)]).first.detector == "reward_hacking"


def test_at_the_same_step_causes_come_before_effects():
    """A mismatch comes before the gradient spike that it causes."""
    said = diagnose([found("reward_stall", "warn", 7), found("grad_spike", "warn", 7), found("mismatch", "warn", 7)])
    assert [f.detector for f in said.raised] == ["mismatch", "grad_spike", "reward_stall"]


def test_nothing_known_is_not_healthy():
    """A run for which at most the sanity checks ran is unknown, not ok."""
    unknown = [Finding(detector=d.name, state="unknown") for d in DETECTORS]
    assert diagnose(unknown).sentence.startswith("Too little data to judge (0 of 31 detectors ran")
    always = [Finding(detector=name, state="ok") for name in ("nan", "data_bug")]
    least = diagnose([*always, *unknown[2:]])
    assert least.status == "unknown"
    assert least.sentence.startswith("Too little data to judge (2 of 31 detectors ran,")
    some = diagnose([*always, *unknown[2:-1], Finding(detector="eval_regression", state="ok")])
    assert (some.status, some.sentence.split(",")[0]) == ("ok", "Healthy (3 of 31 detectors ran")


def test_every_detector_has_thresholds_with_a_source_and_remedies_with_evidence():
    """Nothing is unsourced, what is ours is experimental, and profiles change only what exists."""
    for name in profile_names():
        for thresholds in load_profile(name).thresholds.values():
            assert all(t.source and (t.experimental or "ours" not in t.source) for t in thresholds.values())
    assert set(catalogue()) == {d.name for d in DETECTORS}
    assert all(r.evidence in "ABC" and r.source and r.text for rs in catalogue().values() for r in rs)


def test_the_patches_of_remedies_are_words_of_the_study_file():
    """Each patch fits some preset and changes it; relative ones become numbers of the recipe."""
    rough = {"schedule.minibatches": 4, "schedule.epochs": 2, "schedule.staleness": 1, "model.dtype": "bfloat16"}
    rough |= {"optimizer.max_grad_norm": None, "reward.weights.format": 0.5}
    recipes = [load_preset(name).recipe for name in preset_names()]
    recipes.append(patched(load_preset("grpo").recipe, rough))
    for detector, remedies in catalogue().items():
        for remedy in remedies:
            if remedy.patch or remedy.multiply:
                offered = [r for recipe in recipes for r in remedies_of(detector, recipe) if r.text == remedy.text]
                fitting = [r for r in offered if r.patch]
                assert fitting, (detector, remedy.text)
                assert all(not r.multiply for r in fitting)


def test_a_remedy_that_a_recipe_has_already_is_not_offered():
    """DAPO has clip-higher; GRPO has not."""
    texts = {p: [r.text for r in remedies_of("entropy_collapse", load_preset(p).recipe)] for p in ("dapo", "grpo")}
    assert not any("clip-higher" in t for t in texts["dapo"])
    assert any("clip-higher" in t for t in texts["grpo"])
    [offered] = [r for r in remedies_of("entropy_collapse", load_preset("grpo").recipe) if "clip-higher" in r.text]
    assert patched(load_preset("grpo").recipe, offered.patch).clip.high == 0.28


def test_a_profile_of_ones_own_extends_another(tmp_path):
    """One number changes, the hash with it; a threshold that there is not is refused with its place."""
    file = tmp_path / "mine.yaml"
    file.write_text("version: 3\nabout: short answers\nextends: default\nthresholds:\n  truncation:\n"
                    "    warn: {value: 0.5, source: ours}\n")  # fmt: skip
    mine, default = load_profile(str(file)), load_profile("default")
    assert (mine.of("truncation")["warn"], mine.of("truncation")["critical"]) == (
        0.5,
        default.of("truncation")["critical"],
    )
    assert mine.identity.split("(")[1] != default.identity.split("(")[1]
    file.with_name("bad.yaml").write_text("version: 1\nabout: x\nextends: default\nthresholds:\n  truncation:\n"
                                          "    wran: {value: 0.5, source: ours}\n")  # fmt: skip
    with pytest.raises(StudyFileError, match=r"bad.yaml:6:\d+.*no threshold `wran`; it has note, warn, critical"):
        load_profile(str(tmp_path / "bad.yaml"))
    with pytest.raises(StudyFileError, match="Did you mean `default`"):
        load_profile("defalt")


def test_a_finding_is_experimental_by_what_it_was_held_against():
    """A sourced threshold beside one of ours is no proposal; where the limit is no threshold, all of them count."""
    default = load_profile("default")
    critical = default.of("truncation")["critical"]
    assert not default.experimental("truncation", default.of("truncation")["note"])
    assert default.experimental("truncation", critical)
    assert default.experimental("truncation")
    assert not default.experimental("staleness", 3.5)


def test_noise_is_blind_to_a_trend():
    """The estimate is that of the noise alone, within a tenth, with a slope or without."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 0.3, 4000)
    for slope in (0.0, 0.05):
        assert roughness(x + slope * np.arange(4000)) == pytest.approx(0.3, rel=0.1)


def test_the_trend_test_is_that_of_kendall():
    """Without ties or blocks p is that of Kendall's normal approximation, and the slope Theil and Sen's."""
    x = list(np.random.default_rng(1).normal(0, 1, 40) + 0.03 * np.arange(40))
    mine = trend(x, 1)
    score = sum(np.sign(x[j] - x[i]) for i in range(40) for j in range(i + 1, 40))
    z = (abs(score) - 1) / math.sqrt(40 * 39 * 85 / 18)
    assert mine.p == pytest.approx(2 * stats.norm.sf(z))
    assert mine.slope == pytest.approx(stats.theilslopes(x)[0])


def test_texts_that_repeat_themselves_are_told_from_texts():
    """Loops are found, ordinary text and short text are not; one character over and over is degenerate."""
    loop = "and so the answer is 7. " * 60
    prose = " ".join(f"step {i} takes {i * i % 97} from {i * 7 % 101}" for i in range(120))
    assert repetitive(loop)
    assert not repetitive(prose)
    assert not repetitive("no no no")
    assert of_texts([loop, prose, "!!!!!!", "x"])["signal/degenerate_frac"] == 0.25
    assert of_texts(["a b", "a b", "a b", "c"])["signal/distinct_frac"] == 0.5


def test_groups_kept_as_text_are_no_repetition_of_prompts():
    """One response per evaluated prompt counts; training groups do not."""
    group = [Sample(step=1, set=HELDOUT, problem=p, prompt=p, response=p) for p in "abcd" for _ in range(8)]
    trained = [Sample(step=1, set=TRAIN, problem=p, prompt=p, response="same") for p in "efghijkl"]
    line = MetricLine(step=1, time_ms=0, values={})
    assert with_signals([line], samples=[*group, *trained])[0].values["signal/distinct_frac"] == 1.0


def test_signals_come_from_evaluations_of_the_primary_set():
    """The standard error is that over problems; an evaluation of other problems is a fault of the data."""
    one = {
        "set": "heldout",
        "samples": 2,
        "truncated": (0, 0),
        "tokens": (9, 9),
        "tokens_correct": (9, 0),
        "answers": ({}, {}),
    }
    evaluations = [
        Evaluation(step=1, problems=("a", "b"), correct=(2, 0), **one),
        Evaluation(step=2, problems=("a", "c"), correct=(1, 1), **one),
    ]
    lines = [MetricLine(step=s, time_ms=0, values={"eval/heldout/avg_at_2": 0.5, "reward/mean": 0.1}) for s in (1, 2)]
    first, second = with_signals(lines, primary="eval/heldout/avg_at_2", evaluations=evaluations)
    assert first.values["signal/score"] == 0.5
    assert first.values["signal/score_se"] == pytest.approx(0.5)
    assert (first.values["signal/evaluation_faults"], second.values["signal/evaluation_faults"]) == (0.0, 1.0)
    assert first.values["signal/reward"] == 0.1
