"""The provenance block says where the base comes from."""

from __future__ import annotations

from pathlib import Path

from paribus.report.build import _preset
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner


def test_the_base_is_traced_to_its_preset_and_to_what_the_study_changed(tmp_path: Path) -> None:
    """Source and deviations of the preset are printed, and each change of its objective; the schedule is not one."""
    file = tmp_path / "s.yaml"
    file.write_text(
        "study: s\nbase: {preset: grpo, set: {kl: off, clip.high: 0.3, schedule.steps: 3}}\n"
        "designs: {d: {kind: list, arms: {a: {set: {scale: none}}}}}\n"
    )
    block = _preset(make_plan(load_study(file), FakeRunner()))
    assert "2402.03300" in block["preset"]
    assert "0.2 is PPO's" in block["preset's deviations"]
    assert block["base's changes to it"] == "clip.high = 0.3, kl.kind = off"
