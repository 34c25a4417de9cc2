"""A plan: the arms and runs of a study, each distinct one once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict
from pydantic import Field as Stored

from paribus.contract import EXTERNAL, Checkpoints, Evaluate, Hashes, Options, Resources, StudyName, Support, Timeouts
from paribus.contract.rule import Rules
from paribus.recipe.recipe import Recipe
from paribus.stats.multiple_testing import Correction, Spending
from paribus.stats.pairing import Pairing
from paribus.study.spec import Search


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a design: a place of an arm in a table.

    Attributes:
        design: name of the design in the study, e.g. ``ladder``.
        kind: kind of the design, e.g. ``cumulative``.
        label: name of the row in tables, e.g. ``+ clip_higher``.
        arm: key of the arm (:attr:`Arm.key`).
        parent: label of the row that this one is compared with inside the design; ``None`` for its first row.
        tricks: names of the tricks that are on, in order of application.
        changes: what the row changes against its parent row: dotted path to (before, after).
    """

    design: str
    kind: str
    label: str
    arm: str
    parent: str | None
    tricks: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One resolved recipe of a study.

    Attributes:
        key: first 12 digits of the recipe's fingerprint.
        label: short name for people: the label of its first row.
        recipe: all values resolved.
        changes: what differs from the base arm: dotted path to (base, arm).
        hashes: of code, data and initial model when it was planned; ``None`` in plans of version 0.1.
        approximate: what the runner trains only approximately, with its reasons.
    """

    key: str
    label: str
    recipe: Recipe
    changes: Mapping[str, tuple[Any, Any]]
    hashes: Hashes | None = None
    approximate: tuple[Support, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One arm with one seed.

    Attributes:
        fingerprint: identity across studies, 64 hexadecimal digits.
        arm: key of the arm.
        seed: the seed.
        order: place in the queue: seed-major with the base arm first.
    """

    fingerprint: str
    arm: str
    seed: int
    order: int


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The models of other studies' runs that a run begins with.

    Attributes:
        models: name in the recipe to the folder of the model, inside the home folder.
        runs: name in the recipe to the fingerprint of the run that trained it.
        model_hash: of the initial model; in the run's fingerprint it stands for that of the arm.
    """

    models: Mapping[str, str]
    runs: Mapping[str, str]
    model_hash: str


@dataclass(frozen=True, kw_only=True)
class PlanWarning:
    """Something to know before you spend compute.

    Attributes:
        code: ``inert``, ``same_responses``, ``identical_rows``, ``seeds``, ...
        arm: label of the arm, or empty.
        message: one sentence with the reason.
    """

    code: str
    message: str
    arm: str = ""


@dataclass(frozen=True, kw_only=True)
class InterimRule:
    """The interim analyses of a study that adds seeds, declared before the first run.

    Attributes:
        at: seeds an arm at each look; the last is the most that there will be.
        spending: how the looks share the error rate (:func:`paribus.stats.multiple_testing.shares`).
        width: a look at which each difference to the base has an interval of this length at most ends the study;
            ``None``: one at which each arm is separated from the base after correction, or equivalent to it.
    """

    at: tuple[int, ...]
    spending: Spending
    width: float | None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting that a search tries.

    Attributes:
        candidate: label of the arm that is tuned.
        number: 1, 2, ...; of this candidate.
        values: path of the recipe to its number.
        arm: key of the arm with these values.
    """

    candidate: str
    number: int
    values: Mapping[str, float]
    arm: str


@dataclass(frozen=True, kw_only=True)
class SearchRanking:
    """A search: trials rank settings by runs of their own; the best setting of each tuned arm runs on fresh seeds.

    Attributes:
        design: name of the design.
        rule: as declared.
        candidates: rows of what is tuned, the base first; ``changes`` against the base.
        untuned: their recipes, in the same order.
        trials: settings so far.
        arms: recipes of the trials, distinct.
        runs: runs of the trials, distinct, in queue order; no table of effects has them.
        confirmed: whether the best settings are among the arms of the plan.
        importance: label of a candidate to path to its share; empty unless the rule names an evaluator.
        optuna: version that chose the newest trials.
    """

    design: str
    rule: Search
    candidates: tuple[Row, ...]
    untuned: tuple[Recipe, ...]
    trials: tuple[Trial, ...] = ()
    arms: tuple[Arm, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    confirmed: bool = False
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    optuna: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arms and runs of a study, with everything that scheduling and reporting need.

    Attributes:
        study: name of the study.
        fingerprint: hash of the plan: same file meaning, same code, data and model give the same.
        preset: name of the preset that the base starts from; empty if there is none.
        base: key of the base arm.
        arms: distinct arms, the base first, then in order of first appearance.
        rows: rows of all designs, in the order of the study file.
        runs: distinct runs in queue order.
        seeds: one number a block; without ``paired`` only their count matters, each run has its own seed.
        warnings: what to know before the launch.
        stop_on: detectors that end a run when they become critical.
        profile: thresholds of the detectors.
        rules: detectors of one's own; no part of the fingerprint.
        mirror: where metrics are copied to; no part of the fingerprint.
        webhook: environment variable with the address that gets critical findings; empty: none.
        command: program and arguments that get them on standard input; empty: none.
        margin: difference in the primary metric below which arms count as equivalent; ``None`` if none was declared.
        symptom_correction: of the table of what each arm moves.
        pairing: how arms with paired seeds are compared.
        published: published tables that the report shows for orientation; no part of the fingerprint.
        resources: what each run holds; no part of the fingerprint.
        checkpoint: when runs write checkpoints; no part of the fingerprint.
        timeouts: when a run without progress counts as hung; no part of the fingerprint.
        interim: rule by which seeds are added; ``None``: all runs are known.
        later: runs that the rule may add, in queue order.
        ranking: a search before the last of its runs are known; ``None`` without one.
        origin: fingerprint of the plan that this one grew from; empty for the plan of a study file.
        options: what the study says to its runner beside the recipe.
        text: the study file without known secrets, for copies such as MLflow's; no part of the fingerprint. Empty: the
            study came from no file, or an earlier version made the plan.
        stages: fingerprint of a run to the models of other studies' runs that it begins with.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(serialize_by_alias=True)  # stored under the first names

    study: StudyName
    fingerprint: str
    question: str
    runner: str
    base: str
    arms: tuple[Arm, ...]
    rows: tuple[Row, ...]
    runs: tuple[PlannedRun, ...]
    seeds: tuple[int, ...]
    paired: bool
    evaluate: Evaluate
    stop_on: tuple[str, ...]
    gpu_hours: float | None
    warnings: Annotated[tuple[PlanWarning, ...], Stored(alias="notes")]
    preset: str = ""
    profile: str = "default"
    webhook: str = ""
    command: tuple[str, ...] = ()
    cpu_hours: float | None = None
    run_hours: float | None = None
    margin: float | None = None
    symptom_correction: Correction = "holm"
    pairing: Pairing = "always"
    published: tuple[str, ...] = ()
    resources: Resources = field(default_factory=Resources)
    interim: Annotated[InterimRule | None, Stored(alias="looks")] = None
    later: tuple[PlannedRun, ...] = ()
    ranking: Annotated[SearchRanking | None, Stored(alias="screen")] = None
    origin: str = ""
    options: Options = field(default_factory=Options)
    checkpoint: Checkpoints = field(default_factory=Checkpoints)
    timeouts: Timeouts = field(default_factory=Timeouts)
    rules: Rules = ()
    mirror: tuple[str, ...] = ("mlflow",)
    text: str = ""
    stages: Mapping[str, Stage] = field(default_factory=dict)

    def models_of(self, run: str) -> Mapping[str, str]:
        """Return the models of other studies' runs that a run begins with: name to folder inside the home folder."""
        stage = self.stages.get(run)
        return {} if stage is None else stage.models

    def hashes_of(self, arm: str, run: str) -> Hashes | None:
        """Return the hashes of code, data and initial model of a run of an arm; ``None`` in plans of version 0.1."""
        hashes, stage = self.arm(arm).hashes, self.stages.get(run)
        return hashes if hashes is None or stage is None else replace(hashes, model=stage.model_hash)

    @property
    def adaptive(self) -> bool:
        """Whether results may add runs."""
        return self.interim is not None or self.ranking is not None

    @property
    def may_grow(self) -> bool:
        """Whether results may still add runs: a search has not chosen yet, or seeds are left."""
        return bool(self.later) if self.ranking is None else not self.ranking.confirmed

    @property
    def all_runs(self) -> tuple[PlannedRun, ...]:
        """All runs, also those of trials, which no table of effects shows."""
        return (*self.runs, *self.ranking.runs) if self.ranking else self.runs

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The arms of these runs, each once."""
        if self.ranking is None:
            return self.arms
        known = {arm.key for arm in self.arms}
        return (*self.arms, *(arm for arm in self.ranking.arms if arm.key not in known))

    @property
    def look(self) -> int:
        """Number of the current look: 1, 2, ...; 0 for a study without interim analyses."""
        return self.interim.at.index(len(self.seeds)) + 1 if self.interim else 0

    def under(self, first: Plan) -> Plan:
        """Return the plan with everything outside of its fingerprint as in ``first``: budget, checkpoints, alerts."""
        money = ("gpu_hours", "cpu_hours", "run_hours", "resources", "checkpoint", "timeouts")
        terms = ("question", "warnings", "webhook", "command", "published", "rules", "mirror", "text", *money)
        return replace(self, **{name: getattr(first, name) for name in terms})

    @property
    def external(self) -> bool:
        """Whether Paribus did not start the runs: they were imported from logs, or tracked by their own program."""
        return self.runner == EXTERNAL

    def known_recipe(self, arm: str) -> Recipe | None:
        """Return the recipe of an arm; ``None`` in an external plan, whose recipes only count the steps of a run."""
        return None if self.external else self.arm(arm).recipe

    def has_all_steps(self, arm: str, step: int, generated: float | None, sampled: float | None) -> bool:
        """Whether a run of an arm has all its steps; how many one has that Paribus did not start is not known.

        Args:
            arm: key of the arm.
            step: the newest step of the run.
            generated: tokens generated so far; ``None`` if that is not recorded.
            sampled: prompts sampled so far; ``None`` if that is not recorded.
        """
        recipe = self.known_recipe(arm)
        return recipe is not None and recipe.schedule.spent(step, int(generated or 0), int(sampled or 0))

    def arm(self, key: str) -> Arm:
        """Return the arm with this key."""
        return next(a for a in self.all_arms if a.key == key)
