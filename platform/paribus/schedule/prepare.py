"""Makes what runs share before the first of them starts.

``python -m paribus.schedule.prepare RUNNER RECIPE CACHE LOG``: an engine starts it like a run, so that the scheduler
imports neither torch nor a model.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from paribus.engines.base import Spec
from paribus.errors import ParibusError
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.study.runner import load_runner
from paribus.track.folder import SHORT


def shared_parts(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    """Return one recipe for each distinct pair of model and task, by a name that is the same in every process."""
    distinct: dict[str, Recipe] = {}
    for recipe in recipes:
        subject = [recipe.model.model_dump(mode="json"), recipe.task.model_dump(mode="json")]
        distinct.setdefault(f"prepare-{fingerprint_of(subject)[:SHORT]}", recipe)
    return distinct


def specification(runner: str, recipe: Recipe, cache: Path, log: Path) -> Spec:
    """Return what an engine is to start, and write the recipe beside the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = log.with_suffix(".json")
    file.write_text(recipe.model_dump_json(indent=1))
    return Spec(module=__name__, arguments=(runner, str(file), str(cache), str(log)))


def main(arguments: Sequence[str]) -> int:
    """Prepare one recipe; what is printed goes to the log."""
    runner, recipe, cache, log = arguments[:4]
    with Path(log).open("w") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            load_runner(runner).prepare(Recipe.model_validate_json(Path(recipe).read_bytes()), Path(cache))
        except ParibusError as error:  # the scheduler shows the end of the log
            print(error)  # noqa: T201 - this is the log
            return 1
        except Exception:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
