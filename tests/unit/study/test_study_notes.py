"""Notes of a plan: what is pointless, what the seeds can resolve, and how to silence it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scipy import stats

from paribus.study.expand import make_plan
from paribus.study.notes import detectable_effect, seed_note, smallest_p
from paribus.study.plan import Plan
from paribus.study.spec import Seeds, Study
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], Study]


def notes(plan: Plan) -> dict[str, list[str]]:
    """Return the messages of a plan by code."""
    found: dict[str, list[str]] = {}
    for note in plan.notes:
        found.setdefault(note.code, []).append(note.message)
    return found


def test_a_sound_study_has_only_the_note_on_seeds(plan: Plan) -> None:
    """Nothing is said that is not certain; a grid may hold the base's own value."""
    assert set(notes(plan)) == {"seeds"}


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
    assert found["identical_rows"] == ["e: `y` and `x` are the same recipe"]
    assert found["same_responses"][0].startswith("`+ both`: ")
    assert found["never_clips"][0].startswith("`+ wide`: ")


def test_notes_that_are_allowed_are_silent(read: Read, text: str) -> None:
    """`allow` takes a code out of the plan."""
    assert make_plan(read(text + "allow: [seeds]\n"), FakeRunner()).notes == ()


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
    assert "0.25" in seed_note(Seeds(n=3)).message
    assert "one seed" in seed_note(Seeds(n=1)).message
