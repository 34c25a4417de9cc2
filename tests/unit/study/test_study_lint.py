"""Notes of a plan: what is pointless, what the seeds can resolve, and how to silence it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scipy import stats

from paribus.study.expand import make_plan
from paribus.study.lint import detectable_effect, seed_warning, smallest_p
from paribus.study.load import LoadedStudy
from paribus.study.plan import Plan
from paribus.study.spec import Seeds
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]


def notes(plan: Plan) -> dict[str, list[str]]:
    """Return the messages of a plan by code."""
    found: dict[str, list[str]] = {}
    for note in plan.warnings:
        found.setdefault(note.code, []).append(note.message)
    return found


def test_a_sound_study_has_only_the_note_on_seeds(read: Read, text: str) -> None:
    """Nothing is said that is not certain; a grid may hold the base's own value."""
    unclipped = text.replace("kl: off,", "kl: off, optimizer.max_grad_norm: null,")
    assert set(notes(make_plan(read(unclipped), FakeRunner()))) == {"seeds"}


def test_a_reason_is_told_once_for_all_its_rows(plan: Plan) -> None:
    """All that meets the clipped norm stands in one note, each reason with the first four of its rows."""
    (confounded,) = notes(plan)["confounded"]
    assert confounded.startswith("optimizer.max_grad_norm may clip one of two recipes more than the other")
    assert (
        "`seq_mean` and `token_batch` weigh long responses differently (ladder: `+ token_level`, "
        "solo: `+ token_level`, knockout: `- token_level`, all: `+ token_level` and 2 more); " in confounded
    )
    assert "under `scale: group_std`" in confounded
    assert confounded.endswith(" (named: `dr_grpo`)")


def test_each_pointless_thing_is_told(read: Read) -> None:
    """A trick without effect, equal rows, inert clips, tricks that meet, and mere rescaling are each told."""
    study = read(
        "study: s\nbase: {preset: dr_grpo}\ntricks:\n  nothing: {scale: none}\n  again: {kl: off}\n"
        "  clip: {clip.high: 0.28}\n  loo: {baseline: group_loo}\n"
        "  both: {length: {truncated: mask_loss, rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}}\n"
        "  wide: {ratio: seq_geo, clip.low: 0.3}\n"
        "designs:\n  d: {kind: add_one}\n  e: {kind: list, arms: {x: {tricks: [loo]}, y: {tricks: [nothing, loo]}}}\n"
    )
    found = notes(make_plan(study, FakeRunner()))
    assert found["no_change"] == [
        "d: `+ nothing` is the same recipe as `base`",
        "d: `+ again` is the same recipe as `base`",
    ]
    assert any(message.startswith("d: `+ clip`") for message in found["inert"])
    assert any("d: `+ loo`, e: `x`, e: `y`: the leave-one-out baseline" in message for message in found["rescaled"])
    assert found["length_weighted"][0].startswith("`+ wide`: `ratio: seq_geo` gives a response one value")
    assert found["identical_rows"] == ["e: `y` and `x` are the same recipe"]
    assert found["same_responses"][0].startswith("`+ both`: ")
    assert found["never_clips"][0].startswith("`+ wide`: ")


def test_notes_that_are_allowed_are_silent(read: Read, text: str) -> None:
    """`allow` takes a code out of the plan."""
    assert make_plan(read(text + "allow: [seeds, confounded]\n"), FakeRunner()).warnings == ()


COSTLY = (
    "study: s\nbase: {preset: grpo, set: {kl: off, schedule.minibatches: 4}}\ntricks:\n"
    "  tis: {correction: token_truncate}\n  pull: {kl: loss}\n  refill: {filter: refill}\n  drop: {filter: drop}\n"
    "  meansum: {aggregation: seq_meansum}\n"
    "designs:\n  d: {kind: add_one}\n  e: {kind: factorial, tricks: [tis, refill]}\n"
)


def test_costs_stand_with_the_rows_and_arms_that_have_them(read: Read) -> None:
    """What a row adds to its parent is told of the row; what refill samples is told of the arms that refill."""
    found = notes(make_plan(read(COSTLY), FakeRunner()))
    added, refill = found["cost"]
    assert "old log-probabilities, one more forward pass over the sampled tokens (d: `+ tis`, e: `+ tis`" in added
    assert "a reference model, with one more forward pass over the sampled tokens (d: `+ pull`)" in added
    assert refill.startswith("`+ refill` (and 1 more): `filter: refill` samples 1.8, 1.0 and 1.8 groups")
    declared = notes(make_plan(read(COSTLY + "budget: {pass_rates: [0.0, 0.5]}\n"), FakeRunner()))
    assert "samples 2.0 groups of 8" in declared["cost"][-1]


def test_only_a_runner_that_samples_itself_makes_a_correction_idle(read: Read) -> None:
    """Another runner may sample with other kernels than it trains with."""
    (idle,) = notes(make_plan(read(COSTLY), FakeRunner()))["inert"]
    assert idle.startswith("d: `+ tis`, e: `+ tis`: sampler and learner are the same")
    assert "inert" not in notes(make_plan(read(COSTLY), FakeRunner(samples_with_training_code=False)))


def test_what_only_rescales_is_not_told_to_be_confounded(read: Read) -> None:
    """One note a change of the loss's scale: the stronger."""
    found = notes(make_plan(read(COSTLY), FakeRunner()))
    assert [message.split(":")[1] for message in found["rescaled"]] == [" `+ drop`", " `+ meansum`"]
    assert "confounded" not in found


@pytest.mark.parametrize("n", range(2, 40))
def test_detectable_effects_are_those_of_the_noncentral_t(n: int) -> None:
    """At the stated difference a two-sided t test at 0.05 has power 0.8, within a hundredth or two."""
    for paired in (True, False):
        df, root = (n - 1, n**0.5) if paired else (2 * n - 2, (n / 2) ** 0.5)
        critical = stats.t.ppf(0.975, df)
        power = stats.nct.sf(critical, df, detectable_effect(n, paired=paired) * root)
        assert abs(power - 0.8) < 0.02, (n, paired, power)


def test_the_smallest_p_of_few_seeds_is_large() -> None:
    """Three paired seeds cannot give a p below one quarter, six are the first to pass 0.05."""
    assert [smallest_p(n) for n in (2, 3, 5)] == [0.5, 0.25, 0.0625]
    assert smallest_p(6) < 0.05 < smallest_p(5)
    assert "0.25" in seed_warning(Seeds(n=3)).message
    assert "one seed" in seed_warning(Seeds(n=1)).message
