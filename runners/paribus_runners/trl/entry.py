"""The program that trains in TRL's environment: `python -m paribus_runners.trl.entry train JOB OUT [CHECKPOINT STEP]`.

It writes metric lines, evaluations, samples and checkpoints into its outbox, where
:mod:`paribus_runners.program` checks and records them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from paribus.contract import Job
from paribus.errors import ParibusError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import INITIAL_WEIGHTS, RunFolder, write_json
from paribus_runners.native import fingerprint, versions
from paribus_runners.native import main as native
from paribus_runners.native.policy import Policy
from paribus_runners.native.stopping import termination
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.tasks import Grader, task_of


def main(arguments: list[str]) -> int:
    """Run the program; return its exit status."""
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        match arguments:
            case ["prepare", cache]:
                native.prepare(Recipe.model_validate_json(sys.stdin.buffer.read()), Path(cache))
            case ["train", job, out, *found]:
                train(read_job(Path(job)), Path(out), Path(found[0]) if found else None, int(found[1]) if found else 0)
            case _:
                sys.stderr.write(f"{__doc__}\n")
                return 2
    except ParibusError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


def train(job: Job, out: Path, checkpoint: Path | None, done: int) -> None:
    """Train a job.

    Args:
        job: what to train.
        out: the outbox.
        checkpoint: where to continue; ``None``: from the beginning.
        done: steps that the checkpoint has.

    Raises:
        ParibusError: model or data cannot be read, or do not fit each other.
        SystemExit: with status 75 after SIGTERM.
    """
    folder = RunFolder(out)
    with native.settled(), termination() as asked, ExitStack() as stack:
        policy = load(job)
        about = versions.describe() | {"trl": version("trl"), "accelerate": version("accelerate")}
        write_json(folder.environment, about | {INITIAL_WEIGHTS: policy.weights_hash()})
        functions, sources = job.recipe.reward.functions, job.options.sources
        place = out.parent / "rewards"
        for name, text in sources.items() if functions else ():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        task = task_of(job.recipe.task, policy.render, columns=bool(functions))
        grader = stack.enter_context(Grader(task, functions, place if functions and sources else None))
        sets = {name: each.task for name, each in job.evaluate.sets.items() if each.task is not None}
        others = {name: stack.enter_context(Grader(task_of(level, policy.render))) for name, level in sets.items()}
        from paribus_runners.trl.session import Session

        Session(job, folder, policy, asked, grader, others).run(checkpoint, done)


def load(job: Job) -> Policy:
    """Return the initial policy of a job, the same as the native runner's."""
    model = job.recipe.model
    if model.name not in MODELS:
        return Policy.load(model.name, model.revision, model.dtype)
    spec, warm_up = MODELS[model.name], WarmUp.of(job.recipe.task)
    made = tiny.make(Path(job.cache), fingerprint.model(job.recipe), spec, warm_up)
    return Policy.load(str(made), None, model.dtype)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
