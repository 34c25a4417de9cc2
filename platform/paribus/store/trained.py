"""Finds the models that runs of a home folder have trained, for runs of later stages that begin with them.

SQLAlchemy is imported when the first one is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import ParibusError, RunFolderError
from paribus.recipe.trained import TrainedBy
from paribus.run_folder.folder import SHORT, RunFolder, read_json
from paribus.study.stages import Trained

if TYPE_CHECKING:
    from paribus.store.models import RunRecord, StudyRecord

ADAPTERS = "adapter_config.json"
"""A file in a folder of adapters, which has no weights of a whole model."""


class TrainedModels:
    """The trained models of a home folder, as its store and its run folders are; implements ``Models``.

    Args:
        home: home folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._studies: dict[str, tuple[StudyRecord, tuple[RunRecord, ...]]] = {}

    def find(self, source: TrainedBy, seed: int) -> Trained:
        """Return the model that a run has trained.

        Raises:
            ParibusError: there is no such study, arm or run, it has not ended well, or its model is not here.
        """
        study, runs = self._study(source.study)
        if study.plan.external:
            raise ParibusError(f"Paribus did not start the runs of `{study.name}`, so it has none of their models")
        key = study.arm_key(source.arm)
        mine = {run.seed: run for run in runs if run.arm == key}
        if seed not in mine:
            seeds = ", ".join(map(str, sorted(mine)))
            raise ParibusError(
                f"`{study.name}` has no run of `{source.arm}` with seed {seed}: its seeds are {seeds}. Use seeds that "
                f"both studies have (`seeds`), or one model for all, e.g. `study:{study.name}/{source.arm}@{min(mine)}`"
            )
        run = mine[seed]
        if run.state.value != "SUCCEEDED":
            remedy = f"`paribus retry {study.name}`" if run.terminal else "train it first: `paribus run` with its file"
            raise ParibusError(
                f"the run of `{source.arm}` in `{study.name}` with seed {seed} is {run.state.value.lower()}, not "
                f"finished: {remedy}"
            )
        return self._model_of(run, study.name)

    def _study(self, name: str) -> tuple[StudyRecord, tuple[RunRecord, ...]]:
        from paribus.store.database import named_server
        from paribus.store.untouched import open_untouched

        if name not in self._studies:
            with open_untouched(self.home, named_server()) as reader:
                study = reader.study(name)
                self._studies[name] = study, reader.runs_of(study.id)
        return self._studies[name]

    def _model_of(self, run: RunRecord, study: str) -> Trained:
        folder = RunFolder.of(self.home, run.fingerprint, run.token)
        result: Mapping[str, Any] = {}
        try:
            result = read_json(folder.result)
            path = folder.path / result["model"]
        except (RunFolderError, KeyError, TypeError) as error:
            raise ParibusError(
                f"the run {run.fingerprint[:SHORT]} of `{study}` has left no model in {folder.path}: its runner keeps "
                "none, or it was trained on another machine"
            ) from error
        if not path.is_dir():
            raise ParibusError(
                f"the model of the run {run.fingerprint[:SHORT]} of `{study}` was deleted: {path} is gone. Train "
                "another seed, or the study under another name"
            )
        if (path / ADAPTERS).is_file():
            raise ParibusError(
                f"{path} holds adapters (`model.lora`) and no weights: merge them with peft's `merge_and_unload`, save "
                "the model, and name that folder"
            )
        return Trained(run=run.fingerprint, step=int(result.get("step", 0)), path=str(path.relative_to(self.home)))
