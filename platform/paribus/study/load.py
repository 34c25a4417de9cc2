"""Reads study files and resolves every recipe once; reports all problems together, with their places."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paribus.contract import Options, load_runner, unknown_runner
from paribus.contract.rule import Rules
from paribus.errors import MissingExtra, ParibusError, Problem, StudyFileError, did_you_mean
from paribus.published.tables import unknown_published
from paribus.recipe.patch import with_numbers
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import Recipes, resolve_recipes
from paribus.recipe.shape import paths, recipe_shape
from paribus.recipe.trainer_names import translate
from paribus.study.dependencies import Dependencies, circles, dependency_faults
from paribus.study.design_faults import design_faults, trick_faults, tricks_of
from paribus.study.designs import MAX_ROWS, Draft, candidates, expand, row_count, tricks_alone
from paribus.study.evaluation import evaluation_faults
from paribus.study.path import Followed, PathTricks, follow
from paribus.study.rules import rules_beside
from paribus.study.sources import beside_study
from paribus.study.spec import Grid, Listed, OneAtATime, Search, Study
from paribus.study.syntax import parse
from paribus.yaml_file.compose import read_assignment, read_composed, with_value
from paribus.yaml_file.document import Document, Entry, Fault, Mark, Node, plain
from paribus.yaml_file.messages import shown

_NAMES_OF_VARIABLES = {("health", "webhook")}
"""Values that name a variable: it is read when it is needed, and its value is a secret."""

_PATCHES = {("base", "set"), ("path", "set"), ("tricks", "*"), ("designs", "*", "arms", "*", "set")}
"""Where patches of the recipe stand: there a path may be dotted or nested."""

ResolvedRow = tuple[Draft, Recipe]
"""A row of a design and its recipe."""


@dataclass(frozen=True, kw_only=True)
class LoadedStudy:
    """A study with every recipe resolved and checked.

    Attributes:
        spec: the study, the tricks of its path written out.
        options: what it says to its runner.
        base: the recipe that all arms start from.
        rows: rows of all designs with their recipes, in the order of the study file. A search has none yet.
        alone: for each fraction, the base and each trick alone: the rows of a fraction change several tricks at once.
        tuned: of a search, the base and each trick that it tunes.
        rules: detectors of one's own.
        path: the tricks that come from the path to another preset; ``None`` without one.
        file: path of the file, or the name of the study.
        root: content of the file with places; ``None`` for a study that came from no file.
    """

    spec: Study
    options: Options
    base: Recipe
    rows: tuple[ResolvedRow, ...]
    alone: tuple[ResolvedRow, ...]
    tuned: tuple[ResolvedRow, ...]
    rules: Rules
    path: PathTricks | None
    file: str
    root: Node | None

    def error(self, faults: Iterable[Fault]) -> StudyFileError:
        """Return the error that lists faults with their places in the file."""
        return StudyFileError(self.file, {fault.problem(self.root) for fault in faults})


def read_study(path: Path, changes: Sequence[str] = (), *, sent: bool = False) -> Document:
    """Return the document of a study file: with what it includes, the values of variables, and changes on top.

    Args:
        path: the file.
        changes: values of ``--set``, each ``PATH=VALUE``: a path of the study file, or of a recipe, then of the base.
        sent: the file comes from another machine, which has put everything in: variables and ``include`` have no
            meaning, as they would read this machine's files and environment.

    Raises:
        StudyFileError: a file cannot be read to its end as YAML, or a change has another form.
    """
    document = read_composed(path, None if sent else os.environ, _NAMES_OF_VARIABLES, _PATCHES)
    root = document.root
    for change in changes if isinstance(root.value, dict) else ():
        parts, value = read_assignment(change)
        if parts[0] == "runner" and len(parts) > 1:
            root = _with_kind_of_runner(root, value.mark)
        root = with_value(root, _in_study(parts, value), value)
    return Document(document.file, root, document.problems)


def _with_kind_of_runner(root: Node, mark: Mark) -> Node:
    """Return a study whose runner is a mapping, so that an option can be set beside its name."""
    entry = root.value.get("runner")
    if entry is not None and not isinstance(entry.node.value, str):
        return root
    kind = Entry(mark, Node("native", mark)) if entry is None else entry
    runner = Entry(kind.mark, Node({"kind": kind}, kind.node.mark))
    return replace(root, value={**root.value, "runner": runner})


def _in_study(parts: tuple[str, ...], value: Node) -> tuple[str, ...]:
    """Return the path of a change in the study file.

    Raises:
        StudyFileError: it begins with no key of a study and with no part of a recipe.
    """
    if parts[0] in Recipe.model_fields:
        return ("base", "set", *parts)
    if parts[0] in Study.model_fields or not unknown_runner(parts[0]):
        return parts
    name = ".".join(parts)
    if known := translate(name, plain(value)):
        problems = [Problem(message=message, path=".".join((name, *inside))) for inside, message in known]
        raise StudyFileError(value.mark.file, problems)
    recipe = {".".join(path): None for path, _ in paths(recipe_shape())}
    near = did_you_mean(name, [*recipe, *Study.model_fields]) or did_you_mean(parts[0], Study.model_fields)
    where = "a path is one of a recipe, such as clip.high, or of the study file, such as seeds.n"
    problem = Problem(message=f"there is no `{parts[0]}`.{near} Here {where}.", path=name)
    raise StudyFileError(value.mark.file, [problem])


def load_study(path: Path, changes: Sequence[str] = (), *, installed: bool = False, sent: bool = False) -> LoadedStudy:
    """Return the study in a file: every trick alone and every row of every design is a valid recipe.

    Args:
        path: the file.
        changes: values of ``--set``, as in :func:`read_study`.
        installed: also refuse a runner that is not installed; a study can be reported without it.
        sent: the file comes from another machine, as in :func:`read_study`.

    Raises:
        StudyFileError: the file is not a valid study; every problem is listed with its place and a remedy.
    """
    return load_document(read_study(path, changes, sent=sent), path.parent, installed=installed)


def load_document(document: Document, folder: Path, *, installed: bool = False) -> LoadedStudy:
    """Return the study in a document, as :func:`load_study` does.

    Args:
        document: what the file holds.
        folder: where the files beside the study lie: sources of reward functions, rules.
        installed: also refuse a runner that is not installed.

    Raises:
        StudyFileError: the document is not a valid study; every problem is listed with its place and a remedy.
    """
    root, file = document.root, document.file
    raw = plain(root)
    if not isinstance(raw, dict):
        message = "a study is a mapping that begins with `study: <name>`: see docs/studies.md"
        problem = Problem(message=message, line=root.mark.line, column=root.mark.column, file=root.mark.file)
        raise StudyFileError(file, [*document.problems, problem])
    rest, passthrough, faults = _without_section(_with_numbers(raw))
    study, wrong = parse(rest)
    faults += wrong
    recipes: Recipes[Draft] = Recipes()
    rules: Rules = ()
    in_rules: list[Problem] = []
    of_path: PathTricks | None = None
    if study is not None:
        followed = follow(study)
        study, of_path = followed.study, followed.path
        defined = tuple(dict.fromkeys([*followed.tricks, *_mapping(raw.get("tricks"))]))
        lost = {str(fault.place[0]) for fault in faults if fault.place} & {"path", "needs", "conflicts"}
        unread = bool(document.problems) and not raw.get("tricks", True)
        lost |= {"tricks"} if unread or any(fault.place == ("tricks",) for fault in faults) else set()
        possible = _names_in_path(raw.get("path"))
        meaning, recipes = _resolved(followed, defined, possible, installed=installed, lost=lost)
        replaced = study.base.preset != _mapping(raw.get("base")).get("preset")  # and reported
        faults += [fault for fault in meaning if not (replaced and fault.place == ("base", "preset"))]
        rules, wrong, in_rules = rules_beside(folder, study.health.rules)
        faults += wrong
    known = {
        (p.file, p.line, p.column) for p in document.problems
    }  # what stands there has no meaning that could be wrong
    meant = (fault.problem(root) for fault in faults)
    problems = {*document.problems, *in_rules, *(p for p in meant if (p.file, p.line, p.column) not in known)}
    if study is None or problems:
        raise StudyFileError(file, problems)
    return _loaded(study, passthrough, recipes, file, root, folder, rules, of_path)


def resolve_study(study: Study, passthrough: Mapping[str, Any] | None = None) -> LoadedStudy:
    """Return a study that came from no file with its recipes.

    Raises:
        StudyFileError: a patch or a design is wrong.
    """
    followed = follow(study)
    possible = _names_in_path(study.path.model_dump() if study.path else None)
    faults, recipes = _resolved(followed, tuple(followed.study.tricks), possible, installed=False)
    rules, wrong, in_rules = rules_beside(Path(), study.health.rules)
    if faults or wrong or in_rules:
        raise StudyFileError(study.study, {*in_rules, *(fault.problem(None) for fault in (*faults, *wrong))})
    return _loaded(followed.study, passthrough or {}, recipes, study.study, None, Path(), rules, followed.path)


def _with_numbers(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the study with numbers for text such as ``1e-4`` among the values of grids, which are shown in labels."""
    designs = dict(_mapping(raw.get("designs")))
    for name, design in designs.items():
        over = _mapping(_mapping(design).get("over"))
        if lists := {path: values for path, values in over.items() if isinstance(values, tuple)}:
            numbers = {path: tuple(with_numbers(path, value) for value in values) for path, values in lists.items()}
            designs[name] = {**design, "over": {**over, **numbers}}
    return {**raw, "designs": designs} if designs else raw


def _without_section(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any], list[Fault]]:
    """Return the study without the section named after its runner, that section, and what is wrong with it."""
    chosen = raw.get("runner", "native")
    kind = chosen.get("kind") if isinstance(chosen, Mapping) else chosen
    if not isinstance(kind, str) or kind not in raw or kind in Study.model_fields:
        return dict(raw), {}, []
    rest = {key: value for key, value in raw.items() if key != kind}
    section = raw[kind]
    if not isinstance(section, Mapping):
        return rest, {}, [Fault(place=(kind,), message=f"expects a mapping, and {shown(section)} is not")]
    return rest, section, []


def _loaded(
    study: Study,
    passthrough: Mapping[str, Any],
    recipes: Recipes[Draft],
    file: str,
    root: Node | None,
    folder: Path,
    rules: Rules,
    path: PathTricks | None,
) -> LoadedStudy:
    assert recipes.base is not None  # without faults there is a base
    try:
        used = (recipes.base, *recipes.alone.values(), *(recipe for _, recipe in recipes.variants))
        sources = {} if root is None else beside_study(folder, used)
        options = Options(own=dict(study.runner.own), passthrough=dict(passthrough), sources=sources)
        if options.own and root is not None and not unknown_runner(study.runner.kind):
            named = load_runner(study.runner.kind).sources(options, folder)
            options = Options(own=options.own, passthrough=options.passthrough, sources={**sources, **named})
    except ParibusError as error:
        raise StudyFileError(file, [Problem(message=str(error))]) from None
    except ValidationError:
        message = "options of a runner are text, true or false, finite numbers, lists and mappings"
        raise StudyFileError(file, [Fault(place=("runner",), message=message).problem(root)]) from None
    alone, base = recipes.alone, recipes.base
    searches = [(name, design) for name, design in study.designs.items() if isinstance(design, Search)]
    return LoadedStudy(
        spec=study,
        options=options,
        base=base,
        rows=tuple(found for found in recipes.variants if found[0].kind != "search"),  # see `_Rows.ends`
        alone=tuple((row, alone[row.tricks[0]] if row.tricks else base) for row in tricks_alone(study)),
        tuned=tuple(
            (row, alone[row.tricks[0]] if row.tricks else base)
            for name, design in searches
            for row in candidates(name, design, study)
        ),
        rules=rules,
        path=path,
        file=file,
        root=root,
    )


_MIRRORS = {"tensorboard": "writing event files", "wandb": "writing W&B files"}
"""Mirrors that need a part of their own, and what for."""


def _names_in_path(path: object) -> tuple[str, ...]:
    """Return all names that tricks of a path can have, whatever is wrong with it: factors, and keys such as groups."""
    return (*Recipe.model_fields, *(key for value in _mapping(path).values() for key in _mapping(value)))


def _resolved(
    followed: Followed,
    defined: Sequence[str],
    in_path: Sequence[str],
    *,
    installed: bool,
    lost: Collection[str] = (),
) -> tuple[list[Fault], Recipes[Draft]]:
    """Return what is wrong with the meaning of a study, and its recipes.

    Args:
        followed: the study, its path written out.
        defined: names of all tricks, also of those with faults.
        in_path: all names that tricks of the path can have, for one that cannot be followed.
        installed: refuse a runner that is not installed.
        lost: which of ``path``, ``needs`` and ``conflicts`` could not be read, and ``tricks`` where no name is known.
    """
    study = followed.study
    faults = [*evaluation_faults(study.evaluate), *_published_faults(study), *_pairing_faults(study), *followed.faults]
    possible = () if study.path is None and "path" not in lost else in_path
    wrong = [*circles(study)] if "tricks" in lost else dependency_faults(study, defined, possible)
    faults += wrong
    certain = not possible and not wrong and not lost
    rules = Dependencies.of(study) if certain else Dependencies()
    rows: list[Draft] = []
    for name, design in study.designs.items():
        alone = isinstance(design, (Grid, OneAtATime))  # from tricks
        if certain or alone:
            found = design_faults(name, study, defined, rules)
        else:
            found = [] if "tricks" in lost else [*trick_faults(name, design, defined, possible)]
        faults += found
        if not certain and not alone:
            continue
        if isinstance(design, Listed):  # each arm is checked, whatever is wrong with others
            design = _with_known_tricks(design, study.tricks, rules)
        named = tricks_of(design, defined) or tuple(study.tricks)
        needed = (other for trick in named for other in rules.needed_by(trick))
        complete = all(trick in study.tricks for trick in (*named, *needed))
        if complete and (not found or isinstance(design, (Grid, Listed, OneAtATime))):
            fits = row_count(design, defined, rules) <= MAX_ROWS
            rows += expand(name, design, study.tricks, rules) if fits else ()
    for part, purpose in _MIRRORS.items():
        if installed and part in study.mirror and find_spec(part) is None:
            missing = str(MissingExtra(part, purpose))
            faults.append(Fault(place=("mirror", study.mirror.index(part)), message=missing))
    if installed and (problem := unknown_runner(study.runner.kind)):
        faults.append(Fault(place=("runner",), message=problem))
    # where it is not known what a trick needs, it is in doubt what it does
    needs = rules.needs if certain else dict.fromkeys(study.tricks, ("",))
    recipes = resolve_recipes(study.base.preset, study.base.set, study.tricks, rows, _presets(study), needs)
    return [*faults, *followed.own_words(recipes.faults)], recipes


def _with_known_tricks(design: Listed, tricks: Collection[str], rules: Dependencies) -> Listed:
    """Return a list without arms that lack what a trick needs, whose arms name no trick that is missing or wrong."""
    arms = {
        label: arm.model_copy(update={"tricks": tuple(trick for trick in arm.tricks if trick in tricks)})
        for label, arm in design.arms.items()
        if not any(rules.missing(arm.tricks))
    }
    return design.model_copy(update={"arms": arms})


def _presets(study: Study) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where an arm names a preset, and which."""
    for name, design in study.designs.items():
        for label, arm in design.arms.items() if isinstance(design, Listed) else ():
            if arm.preset is not None:
                yield ("designs", name, "arms", label, "preset"), arm.preset


def _pairing_faults(study: Study) -> list[Fault]:
    if study.report.pairing == "always" or study.seeds.paired:
        return []
    message = (
        "`where_it_helps` decides about pairs of seeds, and `seeds.paired: false` makes none: remove one of the two"
    )
    return [Fault(place=("report", "pairing"), message=message)]


def _published_faults(study: Study) -> Iterator[Fault]:
    for k, name in enumerate(study.report.published):
        if message := unknown_published(name):
            yield Fault(place=("report", "published", k), message=message)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
