"""The provenance block: everything that the numbers depend on. A report without it is refused."""

from __future__ import annotations

from paribus.errors import ParibusError
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import FACTORS, difference
from paribus.report.analysis import Analysis
from paribus.report.measures import LATE
from paribus.stats.compare import ALPHA
from paribus.stats.intervals import LEVEL
from paribus.stats.power import POWER
from paribus.study.growth import looks_text, screen_text
from paribus.study.plan import Plan
from paribus.track.folder import SHORT
from paribus.track.metrics import METRIC_SCHEMA

OBJECTIVE = (*FACTORS[1:], "loss")
"""What a preset pins: all factors but the schedule, and the loss family."""

RECORDED = ("paribus", "git commit", "code", "data", "initial model", "environment", "submitted", "last result")
"""What :attr:`StudyData.provenance` has to hold; where something is not known, its text says so."""


def provenance(analysis: Analysis) -> dict[str, str]:
    """Return name to text of all that the numbers depend on.

    Raises:
        ParibusError: something of :data:`RECORDED` is missing.
    """
    recorded = analysis.data.provenance
    missing = [name for name in RECORDED if not recorded.get(name)]
    if missing:
        raise ParibusError(
            f"the report of `{analysis.plan.study}` is refused: its provenance lacks {', '.join(missing)}. "
            "Numbers are not printed without what they depend on; look into environment.json of its run folders."
        )
    plan, evaluate = analysis.plan, analysis.evaluate
    floor = "; of scores never below the noise of the evaluations" if analysis.held else ""
    outcomes = [r.outcome for r in analysis.data.runs]
    counts = ", ".join(f"{outcomes.count(o)} {o.replace('_', ' ')}" for o in dict.fromkeys(outcomes))
    limits = sorted({a.recipe.schedule.max_new_tokens for a in plan.arms})
    problems = sorted({len(e.problems) for r in analysis.data.runs for e in r.evaluations}) or [evaluate.problems]
    return {
        "study": plan.study,
        "study fingerprint": plan.fingerprint,
        "runner": plan.runner,
        **_preset(plan),
        **{name: str(recorded[name]) for name in RECORDED},
        **{name: str(text) for name, text in recorded.items() if name not in RECORDED},
        "metric schema": str(METRIC_SCHEMA),
        "primary metric": evaluate.primary_metric,
        "checkpoint rule": f"{evaluate.checkpoint}, declared before the run",
        "problems": ", ".join(map(str, problems)),
        "responses per problem": str(evaluate.samples),
        "evaluation temperature": f"{evaluate.temperature:g}",
        "max new tokens": ", ".join(map(str, limits)),
        "evaluated every": f"{evaluate.every} steps",
        "seeds": ", ".join(map(str, plan.seeds)),
        **_growth(plan),
        "runs": f"{len(outcomes)} planned: {counts}",
        "arms": f"{len(plan.arms)} distinct, base `{analysis.label(plan.base)}` ({plan.base[:SHORT]})",
        "intervals": f"{LEVEL:.0%} Student t over training seeds{floor}",
        "tests": f"{'paired t by seed' if plan.paired else 'Welch t'}, two-sided, alpha {ALPHA:g}",
        "correction": _correction(analysis),
        "power": f"{POWER:.0%} by the noncentral t, at the upper 80% bound of the spread seen",
        "equivalence": _equivalence(plan.margin),
        "late in training": f"last {LATE:.0%} of the steps",
    }


def _growth(plan: Plan) -> dict[str, str]:
    """Return the declared rule by which results added runs, and the plan that declared it."""
    origin = plan.origin or plan.fingerprint
    if plan.screen is not None:
        used = plan.screen.optuna or "not asked yet"
        return {"search": screen_text(plan.screen), "optuna": used, "declared in": origin}
    return {"looks": looks_text(plan.looks), "declared in": origin} if plan.looks else {}


def _equivalence(margin: float | None) -> str:
    if margin is None:
        return "not tested: no margin was declared"
    return f"two one-sided t tests against the margin ±{margin:g}, declared in the study file; Holm over arms"


def _preset(plan: Plan) -> dict[str, str]:
    """Return where the base comes from, how that deviates from its source, and how the base deviates from it."""
    if not plan.preset:
        return {}
    preset = load_preset(plan.preset)
    changed = difference(preset.recipe, plan.arm(plan.base).recipe)
    set_here = {path: new for path, (_, new) in changed.items() if path.split(".")[0] in OBJECTIVE and new is not None}
    own = [f"{path} = {value}" for path, value in set_here.items()]
    return {
        "preset": f"{preset.name}: {preset.source}",
        "preset's deviations": " ".join(preset.deviations) or "none",
        "base's changes of it": ", ".join(own) or "none",
    }


def _correction(analysis: Analysis) -> str:
    if not analysis.family:
        return "none: no comparison with the base could be tested"
    declared = analysis.plan.symptom_correction != "holm"
    symptoms = "; what each change moves: Benjamini and Hochberg, declared in the study file" if declared else ""
    score = f"Holm over {analysis.family} comparisons with the base in the primary metric"
    return f"{score}; elsewhere over the tests of the table{symptoms}"
