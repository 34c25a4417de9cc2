"""``paribus.load`` and ``paribus.Study``: a study from its file or from Python objects, its plan, and how it is run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.contract import Options, load_runner
from paribus.errors import ParibusError
from paribus.home import DATABASE_URL
from paribus.home import home as usual_home
from paribus.notebook.frames import Field, frame
from paribus.notebook.html import message_html, plan_html
from paribus.notebook.run import run_command
from paribus.notebook.tables import arms_frame
from paribus.report.tables.changes import changes_text
from paribus.store.database import FILE
from paribus.store.history import recorded_runs
from paribus.store.trained import TrainedModels
from paribus.store.untouched import copy_file
from paribus.study.expand import make_plan
from paribus.study.load import LoadedStudy, load_document, load_study, read_study
from paribus.study.plan import Plan
from paribus.text import plural
from paribus.yaml_file.compose import placed
from paribus.yaml_file.document import Document, Mark, parse_document, plain
from paribus.yaml_file.messages import number_or
from paribus.yaml_file.write import stays_literal, whole_text, yaml_text

if TYPE_CHECKING:
    import pandas as pd

    from paribus.notebook.results import Results

_NOWHERE = Mark(0, 0)


class Study:
    """A study, read and checked. :func:`load` makes it from a file, this class from Python objects.

    The arguments are the sections of a study file: mappings, lists, text, numbers, ``True``, ``False`` and ``None``. A
    study and the file that says the same have the same plan, and so the same runs. Files beside the study, such as
    reward functions, are looked for in the current folder.

    Args:
        study: its name.
        base: the recipe that all arms start from, e.g. ``{"preset": "grpo"}``.
        designs: rules that make arms, e.g. ``{"solo": {"kind": "add_one"}}``.
        sections: the other sections: ``question``, ``tricks``, ``seeds``, ``evaluate``, ...

    Raises:
        ParibusError: the study is not valid; every problem is listed with its place and a remedy.
        TypeError: a study file cannot hold a value; the message names its place.
    """

    def __init__(self, study: str, *, base: Mapping[str, Any], designs: Mapping[str, Any], **sections: Any) -> None:
        if not isinstance(study, str):
            raise TypeError(f"the name of a study is text, not {type(study).__name__}")
        given = {"study": study, **sections, "base": base, "designs": designs}
        values = {key: _plain(value, key) for key, value in given.items()}
        text = yaml_text(values)
        if not stays_literal(text):
            raise TypeError(
                "a study file cannot hold a text with `${` and control characters, or with lines that begin or end "
                "with a blank: there it would be a variable"
            )
        written = parse_document(text, f"Study({study!r})")
        document = Document(
            written.file, placed(written.root, lambda _: _NOWHERE), written.problems
        )  # the user has not seen the text
        self._set(text, None, load_document(document, Path(), installed=True))

    def _set(self, text: str, file: Path | None, loaded: LoadedStudy) -> None:
        self._text = text
        self._file = file
        self._loaded = loaded

    @property
    def name(self) -> str:
        """Its name."""
        return self._loaded.spec.study

    @property
    def question(self) -> str:
        """What it asks."""
        return self._loaded.spec.question

    def to_yaml(self) -> str:
        """Return the study as the text of a study file.

        Of a file with ``include`` or variables, it is one file with the values that they had when it was loaded.
        """
        return self._text

    def save(self, path: str | Path) -> Path:
        """Write the study file; no file is overwritten.

        Raises:
            ParibusError: the file exists already, or cannot be written.
        """
        file = Path(path)
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(self._text)
        except FileExistsError:
            raise ParibusError(f"{file} exists and is not overwritten: name another file.") from None
        except OSError as error:
            raise ParibusError(f"{file} cannot be written: {error.strerror or error}") from error
        return file

    def plan(self, *, home: str | Path | None = None) -> StudyPlan:
        """Return the arms and runs of the study, and what to know before you spend compute.

        Args:
            home: home folder whose recorded runs are marked; ``None``: ``$PARIBUS_HOME``, else ``.paribus``.

        Raises:
            ParibusError: the study cannot be run: its runner does not support it, or data cannot be read.
        """
        folder = usual_home() if home is None else Path(home)
        plan = self._planned(folder)
        return StudyPlan(plan, _recorded(folder, plan))

    def run(
        self,
        *,
        home: str | Path | None = None,
        engine: str = "local",
        slots: int | None = None,
        engine_options: str | Path | None = None,
        report: bool = True,
    ) -> Results:
        """Train the study as `paribus run` does, printing its lines, and return its results.

        Run it again to continue; a finished study is not trained again. An interrupt stops it: its runs write a
        checkpoint, and no process is left.

        Args:
            home: home folder; ``None``: ``$PARIBUS_HOME``, else ``.paribus``.
            engine: what starts the runs: ``local``, ``slurm``, ``ray`` or ``inline``.
            slots: runs at a time; ``None``: as many as GPUs and cores allow.
            engine_options: file with options of the engine; ``None``: ``engines.yaml`` in the home folder.
            report: write the files of the report into ``reports/<study>``.

        Returns:
            The results, also if some runs have failed or the budget is spent: the lines above them say so.

        Raises:
            ParibusError: the study cannot be run, as `paribus run` says it.
            KeyboardInterrupt: it was interrupted.
        """
        from paribus.notebook.results import results

        self._refuse_other_file()
        self._planned(usual_home() if home is None else Path(home))
        options = ["--engine", engine, "--report" if report else "--no-report"]
        options += ["--slots", str(slots)] if slots is not None else []
        options += ["--engine-options", os.fspath(engine_options)] if engine_options is not None else []
        options += ["--home", os.fspath(home)] if home is not None else []
        with self._written() as file:
            run_command(["run", str(file), *options], print)
        return results(self.name, home=home)

    def _planned(self, home: Path) -> Plan:
        return make_plan(self._loaded, load_runner(self._loaded.spec.runner.kind), TrainedModels(home))

    @contextmanager
    def _written(self) -> Iterator[Path]:
        """Yield the file of the study; one that is removed again for a study from Python objects."""
        if self._file is not None:
            yield self._file
            return
        try:  # here, beside the sources of its reward functions
            number, name = tempfile.mkstemp(prefix=f".{self.name}-", suffix=".yaml", dir=Path())
        except OSError as error:
            raise ParibusError(f"cannot write the study into {Path.cwd()}: {error.strerror or error}") from error
        file = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as opened:
                opened.write(self._text)
            yield file
        finally:
            file.unlink(missing_ok=True)

    def _refuse_other_file(self) -> None:
        root = self._loaded.root
        if self._file is None or (root is not None and plain(read_study(self._file).root) == plain(root)):
            return
        raise ParibusError(
            f"{self._file}, or a file or variable that it takes values from, was changed after it was loaded: load it "
            "again with `paribus.load`."
        )

    def __eq__(self, other: object) -> bool:
        """Whether both say the same; files in which they stand do not count."""
        if not isinstance(other, Study):
            return NotImplemented
        return self._meaning() == other._meaning()

    def _meaning(self) -> tuple[Any, Options]:
        return _with_numbers(self._loaded.spec.model_dump(mode="json")), self._loaded.options

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        where = f" in {self._file}" if self._file else ""
        return (
            f"<paribus.Study `{self.name}`{where}: {plural(len(self._loaded.rows), 'row')}; .plan() shows "
            "them, .run() trains>"
        )

    def _repr_html_(self) -> str:
        try:
            return self.plan()._repr_html_()
        except ParibusError as error:
            return message_html(self.name, self.question, str(error))


def load(path: str | Path) -> Study:
    """Return the study in a file.

    Raises:
        ParibusError: the file cannot be read or is not a valid study; every problem is listed as
            ``file:line:column: place: what is wrong``.
        TypeError: the argument is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the path of a study file is text or a pathlib.Path, not {type(path).__name__}")
    if not os.fspath(path):
        raise ParibusError("the path of the study file is empty: name a YAML file.")
    file = Path(path).expanduser()
    loaded = load_study(file, installed=True)
    assert loaded.root is not None  # it came from a file
    made = Study.__new__(Study)
    made._set(whole_text(file, loaded.root), file, loaded)
    return made


@dataclass(frozen=True, repr=False, eq=False)
class StudyPlan:
    """The arms and runs of a study before it runs; :meth:`Study.plan` makes it."""

    _plan: Plan
    _recorded: frozenset[str]

    @property
    def study(self) -> str:
        """Name of the study."""
        return self._plan.study

    @property
    def fingerprint(self) -> str:
        """Hash of the plan: equal studies, code, data and models give equal plans."""
        return self._plan.fingerprint

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before you spend compute, each with the code that `allow` takes."""
        return tuple(f"[{w.code}] {w.message}" for w in self._plan.warnings)

    def rows(self) -> pd.DataFrame:
        """Return one row for each place in a design: ``design``, ``kind``, ``row``, ``arm``, ``changes``."""
        arms = {arm.key: arm for arm in self._plan.arms}
        rows = [
            (row.design, row.kind, row.label, arms[row.arm].label, changes_text(arms[row.arm].changes))
            for row in self._plan.rows
        ]
        fields = {
            "design": Field("category"),
            "kind": Field("category"),
            "row": Field("string"),
            "arm": Field("category"),
            "changes": Field("string"),
        }
        designs = list(dict.fromkeys(row.design for row in self._plan.rows))
        return frame(rows, fields, {"arm": self._labels, "design": designs})

    def arms(self) -> pd.DataFrame:
        """Return one row for each arm: ``arm``, ``key``, and a column for each setting in which arms differ."""
        return arms_frame(self._plan.arms)

    def runs(self) -> pd.DataFrame:
        """Return one row for each run, in queue order: ``run``, ``arm``, ``seed``, ``recorded``."""
        labels = {arm.key: arm.label for arm in self._plan.arms}
        rows = [(r.fingerprint, labels[r.arm], r.seed, r.fingerprint in self._recorded) for r in self._plan.runs]
        fields = {
            "run": Field("string"),
            "arm": Field("category"),
            "seed": Field("int"),
            "recorded": Field("bool"),
        }
        return frame(rows, fields, {"arm": self._labels})

    @property
    def _labels(self) -> list[str]:
        return [arm.label for arm in self._plan.arms]

    def __repr__(self) -> str:
        plan = self._plan
        done = sum(r.fingerprint in self._recorded for r in plan.runs)
        head = (
            f"{plan.study}: {plural(len(plan.arms), 'arm')}, {plural(len(plan.runs), 'run')}, {done} of them recorded"
        )
        rows = [f"  {r.design}: {r.label}: {changes_text(plan.arm(r.arm).changes)}" for r in plan.rows]
        return "\n".join([head, *rows, *self.warnings])

    def _repr_html_(self) -> str:
        changes = {arm.key: changes_text(arm.changes) for arm in self._plan.arms}
        return plan_html(self._plan, changes, self._recorded)


def _recorded(home: Path, plan: Plan) -> frozenset[str]:
    """Return which runs have a result; of a file a copy is read, so that nothing is written into the home folder."""
    fingerprints = [run.fingerprint for run in plan.runs]
    if os.environ.get(DATABASE_URL) or not (home / FILE).is_file():
        return recorded_runs(home, fingerprints)
    with tempfile.TemporaryDirectory(prefix="paribus-") as scratch:
        copy_file(home, Path(scratch))
        return recorded_runs(Path(scratch), fingerprints)


def _plain(value: Any, place: str, above: tuple[int, ...] = ()) -> Any:
    """Return a value as YAML can hold it, without shared parts; ``above`` are the identities of what it stands in.

    Raises:
        TypeError: it is of another type, or contains itself; the message names its place.
    """
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if id(value) in above:
        raise TypeError(f"{place}: a mapping or list that contains itself has no end")
    above = (*above, id(value))
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{place}: keys are text, and {strange[0]!r} is {type(strange[0]).__name__}")
        return {str(key): _plain(inner, f"{place}.{key}", above) for key, inner in value.items()}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(inner, f"{place}.{number}", above) for number, inner in enumerate(value, 1)]
    raise TypeError(
        f"{place}: a study holds mappings, lists, text, numbers, True, False and None, not {type(value).__name__}"
    )


def _with_numbers(value: Any) -> Any:
    """Return JSON values with numbers for text such as ``1e-6``, which is text in YAML and a number in Python."""
    if isinstance(value, dict):
        return {key: _with_numbers(inner) for key, inner in value.items()}
    return [_with_numbers(inner) for inner in value] if isinstance(value, list) else number_or(value)
