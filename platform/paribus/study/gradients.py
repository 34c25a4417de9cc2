"""Gradient probes of a study: what each arm does to one gradient, and the files that keep them beside its reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from paribus.atomic import write_whole
from paribus.contract import Gradients, ObjectiveGradient
from paribus.errors import ParibusError
from paribus.recipe.analysis.one_gradient import Seen, on_rollouts_of, seen
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import SHORT
from paribus.study.plan import Plan
from paribus.study.study_files import FOLDER
from paribus.text import plural

NOISE = 10.0
"""Distances up to this many times the measured noise are rounding, of which that is one draw."""
LEAST_NOISE = 1e-6
"""Noise where less was measured: log-probabilities of sampler and learner, and so the ratio, differ by that much."""

SMALL = 0.01
"""Distances below this share of the gradient are named as small."""

Verdict = Literal["base", "identical", "none", "small", "scale", "direction", "hidden"]

WORDS: Mapping[Verdict, str] = {
    "base": "the base",
    "identical": "none here: equal to the bit",
    "none": "none here but rounding",
    "small": "less than 1%",
    "scale": "length alone",
    "direction": "direction",
    "hidden": "not visible here",
}
"""Verdicts in words."""


@dataclass(frozen=True, kw_only=True)
class ArmProbe:
    """What one arm does to the gradient.

    Attributes:
        key: key of the arm.
        label: its label.
        verdict: a key of :data:`WORDS`.
        hidden: path of a change to the reason why one gradient cannot show it.
        partly: path of a change to what of it cannot be seen.
        gradient: its gradient beside that of the base.
    """

    key: str
    label: str
    verdict: Verdict
    hidden: dict[str, str]
    partly: dict[str, str]
    gradient: ObjectiveGradient


@dataclass(frozen=True, kw_only=True)
class GradientProbe:
    """The gradients of all arms of a study at one step of one run, and what they were computed from.

    Attributes:
        study: name of the study.
        base: key of its base.
        run: fingerprint of the run.
        arm: label of its arm.
        seed: its seed.
        checkpoint: the checkpoint, as a path below the home folder; empty: the weights that the run begins with.
        after_updates: whether the gradients were taken after the run's own updates on the rollouts.
        code: hash of the code that computed them.
        run_code: hash of the code that the run was planned with; empty if it is not known.
        version: of Paribus.
        gradients: what the runner computed; of its arms only the numbers that ``arms`` repeats.
        arms: the arms, the base first.
    """

    study: str
    base: str
    run: str
    arm: str
    seed: int
    checkpoint: str
    after_updates: bool
    code: str
    run_code: str
    version: str
    gradients: Gradients
    arms: tuple[ArmProbe, ...]

    @property
    def noise(self) -> float:
        """The distance up to which gradients count as equal."""
        return NOISE * max(self.gradients.noise, LEAST_NOISE)


class Asked(NamedTuple):
    """The objectives of a study as they act on the rollouts of a run, and what of each arm is seen.

    Attributes:
        base: that of the base.
        arms: those of the other arms, by key.
        seen: what of their changes is visible, by key.
    """

    base: Recipe
    arms: dict[str, Recipe]
    seen: dict[str, Seen]


def objectives(plan: Plan, run: Recipe) -> Asked:
    """Return what to ask a runner for, given the recipe of the run whose rollouts are used."""
    base = plan.arm(plan.base).recipe
    found = {arm.key: seen(base, arm.recipe, run) for arm in plan.arms if arm.key != plan.base}
    return Asked(on_rollouts_of(run, base), {key: each.recipe for key, each in found.items()}, found)


def judged(plan: Plan, found: Gradients, what: Mapping[str, Seen]) -> tuple[ArmProbe, ...]:
    """Return the arms of a plan with a verdict each, the base first."""
    limit = NOISE * max(found.noise, LEAST_NOISE)
    arms = [ArmProbe(key=plan.base, label=plan.arm(plan.base).label, verdict="base", hidden={}, partly={},
                     gradient=found.base)]  # fmt: skip
    for arm in plan.arms:
        if arm.key == plan.base:
            continue
        mine, each = found.arms[arm.key], what[arm.key]
        verdict = verdict_of(mine, limit) if each.acts else "hidden"
        arms.append(ArmProbe(key=arm.key, label=arm.label, verdict=verdict, hidden=each.hidden, partly=each.partly,
                             gradient=mine))  # fmt: skip
    return tuple(arms)


def verdict_of(gradient: ObjectiveGradient, limit: float) -> Verdict:
    """Return what a gradient is beside that of the base, if distances up to ``limit`` are rounding."""
    if gradient.distance <= limit:
        return "identical" if gradient.distance == 0 else "none"
    if gradient.distance < SMALL:
        return "small"
    if gradient.cosine is not None and gradient.cosine > 0 and gradient.residual <= limit:
        return "scale"
    return "direction"


def write_probe(home: Path, probe: GradientProbe) -> Path:
    """Keep a probe in the home folder, in place of an earlier one of the same step; return its file.

    Raises:
        OSError: the folder cannot be written.
    """
    after = "-after-updates" if probe.after_updates else ""
    path = _folder(home, probe.study) / f"{probe.run[:SHORT]}-{probe.gradients.step:06d}{after}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _PROBE.dump_json(probe, indent=1))
    return path


def read_probes(home: Path, plan: Plan) -> tuple[GradientProbe, ...]:
    """Return the probes of a plan, by run and step; those of a plan with other arms are left out.

    Raises:
        ParibusError: a file is damaged.
    """
    found = []
    for path in sorted(_folder(home, plan.study).glob("*.json")):
        try:
            found.append(_PROBE.validate_json(path.read_bytes()))
        except (ValidationError, OSError) as error:
            raise ParibusError(f"{path} is not a gradient probe: delete it, or probe again ({error})") from error
    keys = {arm.key for arm in plan.arms}
    return tuple(probe for probe in found if probe.base == plan.base and {arm.key for arm in probe.arms} == keys)


def plain(probe: GradientProbe) -> dict[str, object]:
    """Return a probe as JSON values."""
    values: dict[str, object] = _PROBE.dump_python(probe, mode="json")
    return values


def cosine_text(value: float | None) -> str:
    """Return a cosine in words; ``1`` alone is exactly 1."""
    return "-" if value is None else "1" if value == 1 else f"{value:.4f}"


def ratio_text(value: float | None) -> str:
    """Return a ratio in words; ``1`` alone is exactly 1, and near it the difference is printed."""
    if value is None:
        return "-"
    near = abs(value - 1)
    return "1" if not near else f"1{value - 1:+.0e}" if near < 5e-4 else f"{value:.4g}"


SHARE_NOTE = (
    "Shares of |c|, where grad = -sum c grad log pi: of responses longer than the median, of wrong ones, of tokens "
    "with a probability below 0.2, of the first and of the last third of responses. Entropy bonuses are no part of c."
)
"""What the columns of shares hold."""


def about(probe: GradientProbe) -> str:
    """Return what the gradients are of."""
    found = probe.gradients
    after = f" after {plural(found.updates, 'update')} of the run on them" if probe.after_updates else ""
    return (
        f"{plural(found.groups, 'group')}, {plural(found.responses, 'response')}, "
        f"{plural(found.tokens, 'token')}, {found.rollouts}; gradients of "
        f"the policy on all of them in one optimizer batch{after}, before gradient clipping and optimizer"
    )


def noise_note(probe: GradientProbe) -> str:
    """Return what counts as rounding."""
    return (
        f"Differences up to {probe.noise:.1e} of the base's gradient are rounding: with its groups in another order it "
        f"differs by {probe.gradients.noise:.1e}."
    )


def unseen(arm: ArmProbe) -> list[str]:
    """Return a line for each change of an arm that is not visible, or not all of it."""
    hidden = [f"`{path}` is not visible here: it {reason}" for path, reason in arm.hidden.items()]
    return hidden + [f"`{path}`: {what}" for path, what in arm.partly.items()]


def sentence(probe: GradientProbe) -> str:
    """Return which arms change the gradient, and which do not, as one or two sentences."""
    if probe.gradients.base.norm == 0 and all(arm.gradient.norm == 0 for arm in probe.arms):
        return "All gradients are 0 here: no group has responses with different rewards."
    named = {v: [f"`{a.label}`" for a in probe.arms if a.verdict == v] for v in WORDS}
    parts = [
        ("change the direction of the gradient", named["direction"]),
        ("change its length alone", named["scale"]),
        ("change it by less than 1%", named["small"]),
        ("change nothing here", [*named["identical"], *named["none"]]),
        ("cannot be seen here", named["hidden"]),
    ]
    found = [f"{', '.join(names)} {_singular(what) if len(names) == 1 else what}" for what, names in parts if names]
    return f"{'; '.join(found)}." if found else "The study has no arm beside its base."


def _singular(what: str) -> str:
    return what.replace("change ", "changes ", 1)


_PROBE: TypeAdapter[GradientProbe] = TypeAdapter(GradientProbe)


def _folder(home: Path, study: str) -> Path:
    return home / FOLDER / study / "gradients"
