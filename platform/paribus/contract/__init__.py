"""The contract between Paribus and a training program: the job, the resources of a run, and the runner.

**To write a runner**, subclass :class:`RunnerBase`, set ``name``, write ``run``, and name an instance of the class in
the entry points of your package::

    [project.entry-points."paribus.runners"]
    toy = "my_package.toy:runner"

``run`` gets the folder of one attempt. It reads the :class:`Job` in ``job.json``, trains, appends one line a step to
``metrics.jsonl``, writes an evaluation of each set that ``job.evaluate.due`` names, and writes ``result.json`` last.
:class:`paribus.run_folder.folder.RunFolder` reads and writes these files; :mod:`paribus.run_folder.metrics` lists the
metrics. This runner is complete; a real one trains where this one draws numbers::

    class Toy(RunnerBase):
        name = "toy"
        evaluates_sets = True

        def run(self, folder: Path) -> None:
            files = RunFolder(folder)
            job = Job.model_validate_json(files.job.read_bytes())
            chance, steps = random.Random(job.seed), job.recipe.schedule.steps
            write_json(files.environment, {"toy": "1"})
            for step in range(steps + 1):
                skill = 0.2 + job.recipe.clip.high * step / steps
                values = {"reward/mean": skill + chance.gauss(0, 0.01)}
                for name, chosen in job.evaluate.due(step, steps).items():
                    n, k = chosen.problems, chosen.samples
                    right = tuple(sum(chance.random() < skill for _ in range(k)) for _ in range(n))
                    files.write_evaluation(Evaluation(
                        step=step, set=name, samples=k, problems=tuple(map(str, range(n))), correct=right,
                        truncated=(0,) * n, tokens=(9 * k,) * n, tokens_correct=tuple(9 * c for c in right),
                        answers=tuple({"right": c, "wrong": k - c} for c in right),
                    ))
                    values[f"eval/{name}/avg_at_{k}"] = sum(right) / (n * k)
                files.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))
            write_json(files.result, {"status": "succeeded", "steps": steps})


    runner = Toy()

All other members of :class:`Runner` have a default in :class:`RunnerBase`. Override ``support`` to declare what your
program trains approximately or not at all, ``requirements`` to declare GPUs and package versions, ``hashes`` if the
numbers depend on more files than the one that defines the class, ``sources`` if your options name files beside a study,
and ``examine`` to show a plan what the data hold. A runner that sets ``evaluates_sets`` also evaluates the sets of
``evaluate.sets``, each with its own problems, responses, temperature, top-p and length limit; without it, a study with
sets is refused. One that sets ``ends_by_tokens`` ends a run with the first step after which ``schedule.spent`` holds,
and evaluates all sets after it; without it, a study with ``schedule.tokens`` is refused, as without
``ends_by_prompts`` one with ``schedule.prompts``. Test the runner with ``paribus.testing.runner_suite.RunnerTestCase``.
"""

from paribus.contract.files import file_hash, files_in, input_hash
from paribus.contract.gradients import PARTS, GradientJob, Gradients, ObjectiveGradient
from paribus.contract.job import (
    EXTERNAL,
    PHASES,
    STUDY_NAME,
    Checkpoints,
    Hashes,
    Job,
    Options,
    RunPhase,
    StudyName,
    Timeouts,
)
from paribus.contract.resources import LEAST, Device, Need, Resources
from paribus.contract.runner import (
    GROUP,
    PREEMPTED,
    Examination,
    OptionProblem,
    Requirements,
    Runner,
    Support,
    available,
    load_runner,
    unknown_runner,
)
from paribus.contract.runner_base import RunnerBase, option_problems
from paribus.evaluate import Evaluate, EvaluationSet

__all__ = [
    "EXTERNAL", "GROUP", "LEAST", "PARTS", "PHASES", "PREEMPTED", "STUDY_NAME", "Checkpoints", "Device", "Evaluate",
    "EvaluationSet", "Examination", "GradientJob", "Gradients", "Hashes", "Job", "Need", "ObjectiveGradient",
    "OptionProblem", "Options", "Requirements", "Resources", "RunPhase", "Runner", "RunnerBase", "StudyName", "Support",
    "Timeouts", "available", "file_hash", "files_in", "input_hash", "load_runner", "option_problems", "unknown_runner",
]  # fmt: skip
