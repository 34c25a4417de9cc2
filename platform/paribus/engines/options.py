"""Engine options: what depends on the cluster and never on the study, in a separate file (``engines.yaml``).

The file has one mapping per engine, named as on the command line::

    slurm:
      partition: gpu
      gpus: 1
"""

from __future__ import annotations

from importlib.metadata import entry_points
from math import ceil, inf
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paribus.contract import Need, Resources
from paribus.engines.base import GROUP, PATIENCE_S, EngineSettings
from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.yaml_file.document import Node, locate, plain, read_document
from paribus.yaml_file.messages import explain, plain_location, validate

FILE = "engines.yaml"
"""Name of the file in the home folder."""

_WITHOUT_OPTIONS = ("inline", "local")


class Options(BaseModel):
    """Base class of an engine's options: unknown names and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ClusterOptions(Options):
    """Base class of the options of engines whose jobs outlive the scheduler.

    Attributes:
        patience: seconds that a run goes on without the scheduler; absent: no limit.
    """

    patience: Annotated[float, Field(ge=PATIENCE_S, strict=False)] | None = None

    @property
    def patience_s(self) -> float:
        """Seconds that an attempt goes on without the scheduler; ``inf``: no limit."""
        return inf if self.patience is None else self.patience


def run_need(resources: Resources, *, gpus: float, cpus: float) -> Need:
    """Return what a run holds on a cluster.

    Args:
        resources: what the study declares; it takes precedence.
        gpus: GPUs where it declares none; rounded up so that all nodes have equally many.
        cpus: cores, likewise.
    """
    nodes = resources.nodes
    held = _multiple(gpus, nodes) if resources.gpus is None else resources.gpus
    cores = float(resources.cpus or _multiple(cpus, nodes))
    return Need(gpus=float(held), cpus=cores, threads=resources.cpus or (None if held else 1), nodes=nodes)


def _multiple(amount: float, of: int) -> float:
    """Return the least multiple that is not below an amount; of one node, parts of a GPU stay what they are."""
    return amount if of == 1 else float(of * ceil(amount / of))


_O = TypeVar("_O", bound=Options)


def engine_settings(runner: str, home: Path, slots: int | None = None, options: Path | None = None) -> EngineSettings:
    """Return the settings for an engine of a home folder; ``options`` defaults to the home's :data:`FILE`, if any."""
    found = home / FILE
    chosen = options or (found if found.exists() else None)
    return EngineSettings(runner=runner, folder=home / "engine", slots=slots, options=chosen)


def read_options(file: Path | None, engine: str, model: type[_O]) -> _O:
    """Return the options of an engine; all defaults if there is no file, or no mapping for the engine.

    Raises:
        StudyFileError: the file can't be read, or contains mistakes; the error lists all of them.
    """
    if file is None:
        return model()
    root = read_document(file).checked()
    names = sorted({e.name for e in entry_points(group=GROUP)} - set(_WITHOUT_OPTIONS))
    if not isinstance(root.value, dict):
        raise _error(file, root, (), f"expected one mapping per engine: {', '.join(names)}")
    for name in root.value:
        if name not in names:
            message = f"no engine `{name}` has options.{did_you_mean(name, names)} Allowed: {', '.join(names)}."
            raise _error(file, root, (name,), message)
    raw = plain(root).get(engine)
    try:
        return model() if raw is None else validate(model, raw)
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            path = (engine, *plain_location(item, raw))
            mark = locate(root, path, key=item["type"] == "extra_forbidden")
            message = explain(item, tuple(model.model_fields))
            shown = ".".join(map(str, path))
            problems.append(Problem(message=message, path=shown, line=mark.line, column=mark.column))
        raise StudyFileError(str(file), problems) from error


def _error(file: Path, root: Node, path: tuple[str, ...], message: str) -> StudyFileError:
    mark = locate(root, path, key=True)
    return StudyFileError(str(file), [Problem(message=message, line=mark.line, column=mark.column)])
