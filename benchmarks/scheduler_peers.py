"""The peers of `scheduler.py`, in their own environment: reads `PEER TRIALS` lines, answers each with its seconds.

A trial is empty. Optuna: `study.ask()` and `study.tell(trial, 0.0)`, no parameter, random sampler. Ray Tune:
`Tuner.fit()` of a trainable whose first step is its last, on one actor that is used again for all trials (its fastest
way), without loggers; or with an actor a trial (its default).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def optuna_of(storage: str, folder: Path) -> Callable[[int], None]:
    """Return a function that makes so many more trials in a study of its own."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place: object = f"sqlite:///{folder / 'optuna.db'}"
    if storage == "journal":
        place = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    study = optuna.create_study(storage=place, sampler=optuna.samplers.RandomSampler(), study_name=storage)

    def trials(count: int) -> None:
        for _ in range(count):
            study.tell(study.ask(), 0.0)

    return trials


def ray_of(folder: Path, reuse: bool) -> Callable[[int], None]:
    """Return a function that runs so many trials in a Tune experiment of its own."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray
    from ray import tune

    class Empty(tune.Trainable):
        def step(self) -> dict[str, object]:
            return {"score": 0.0, "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            return None

        def reset_config(self, new_config: dict[str, object]) -> bool:
            return True

    if not ray.is_initialized():
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    def trials(count: int) -> None:
        tuner = tune.Tuner(
            Empty,
            param_space={"seed": tune.grid_search(list(range(count)))},
            tune_config=tune.TuneConfig(reuse_actors=reuse),
            run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
        )
        assert tuner.fit().num_terminated == count

    return trials


MAKERS: dict[str, Callable[[Path], Callable[[int], None]]] = {
    "rdb": lambda folder: optuna_of("rdb", folder),
    "journal": lambda folder: optuna_of("journal", folder),
    "ray": lambda folder: ray_of(folder, reuse=True),
    "ray-default": lambda folder: ray_of(folder, reuse=False),
}


def main() -> None:
    """Answer requests until there are no more; what the peers print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder, made = Path(sys.argv[1]), dict[str, Callable[[int], None]]()
    for line in sys.stdin:
        name, count = line.split()
        if name not in made:
            made[name] = MAKERS[name](folder)
        start = time.perf_counter()
        made[name](int(count))
        answers.write(f"{time.perf_counter() - start}\n")


if __name__ == "__main__":
    main()
