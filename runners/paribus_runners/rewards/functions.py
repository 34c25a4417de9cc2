"""Functions of the user: where their source is, and what is wrong with it, without importing it.

A reward function has the shape of TRL's ``reward_funcs``: it takes ``prompts``, ``completions`` and the columns of the
data as keyword arguments, lists with one entry a response, and returns one number for each. A function that answers
turns takes ``turns`` as well, and returns a text or ``None`` for each.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from paribus.errors import did_you_mean
from paribus.recipe.factors import RewardFunction
from paribus.recipe.turns import FunctionTurns
from paribus.study.sources import Find, Source, follow, not_python, parse, read
from paribus_runners.rewards.pool import Fault, Outcome

GIVEN = ("prompts", "completions")
"""Arguments that a function gets beside the columns of the data."""
MOST_SCORE = 1e30
"""The largest score: times the largest weight it is still a float32."""


def installed(module: str) -> Source | None:
    """Return the file of a module that Python would import, without importing it or its packages.

    Returns:
        Its path from the folder of its outermost package; ``None`` if there is none, or it is not written in Python.
    """
    spec = _spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    depth = len(module.split(".")) + (1 if spec.submodule_search_locations is not None else 0)
    file = Path(spec.origin)
    return Source("/".join(file.parts[-depth:]), read(file))


def _spec(module: str) -> ModuleSpec | None:
    """Return where a module would come from; nothing is imported, not even its packages."""
    top, *parts = module.split(".")
    try:
        spec = find_spec(top)  # by every finder, because editable installs bring one of their own
    except ValueError:  # it is loaded, and does not say from where
        return None
    name = top
    for part in parts:
        if spec is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations or [])
    return spec


def source_files(function: RewardFunction | FunctionTurns, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the files that a function comes from, by path: those beside the study, else those of its package.

    Args:
        function: the function.
        sources: the files beside the study, by path.
    """
    module = function.path.rpartition(".")[0]
    if found := follow([module], _given(sources)):
        return found
    top = module.split(".")[0]
    return follow([module], lambda name: installed(name) if name.split(".")[0] == top else None)


def _given(sources: Mapping[str, str]) -> Find:
    def find(module: str) -> Source | None:
        path = module.replace(".", "/")
        return next((Source(p, sources[p]) for p in (f"{path}/__init__.py", f"{path}.py") if p in sources), None)

    return find


def fault(
    place: str,
    function: RewardFunction | FunctionTurns,
    sources: Mapping[str, str],
    columns: Mapping[str, str] | None,
    given: Sequence[str] = GIVEN,
) -> str:
    """Return what is wrong with a function as far as its source shows it, with what to do; empty if nothing is.

    Args:
        place: where the recipe names it.
        function: the function.
        sources: the files beside the study, by path.
        columns: columns of the data, each with the place of the first row that lacks it, or an empty text; ``None`` if
            they are not known, because the data cannot be read.
        given: the arguments that it gets beside these columns.

    Raises:
        ParibusError: a source file cannot be read.
    """
    place = f"`{place}.path: {function.path}`"
    module, _, wanted = function.path.rpartition(".")
    source = _given(sources)(module) or installed(module)
    if source is None:
        if _is_compiled(module):
            return ""
        file = f"{module.replace('.', '/')}.py"
        return f"{place}: there is no module `{module}`: put {file} beside the study file, or install it"
    try:
        found = _definitions(parse(source.text).body)
    except (SyntaxError, RecursionError) as error:
        return f"{place}: {not_python(source.path, error)}"
    if wanted not in found:
        if {"*", "__getattr__"} & found.keys():
            return ""
        functions = sorted(k for k, v in found.items() if isinstance(v, ast.FunctionDef | ast.AsyncFunctionDef))
        there = f"Its functions: {', '.join(f'`{f}`' for f in functions[:8])}" if functions else "It has no functions"
        return f"{place}: {source.path} has no `{wanted}`.{did_you_mean(wanted, functions)} {there}"
    return "".join(f"{place}: {source.path}:{found[wanted].lineno} {problem}"
                   for problem in _unfit(found[wanted], wanted, columns, given))  # fmt: skip


def _is_compiled(module: str) -> bool:
    """Return whether a module exists, but not as Python source: nothing can be said about it."""
    top = module.split(".")[0]
    return top in sys.builtin_module_names or (installed(module) is None and _spec(module) is not None)


def _definitions(body: Sequence[ast.stmt]) -> dict[str, ast.stmt]:
    """Return what names of a module stand for, as far as its top level shows it; branches count."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {x.id: node for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
        for inner in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                parts = getattr(node, inner, [])
                nested = [s for p in parts for s in (p.body if isinstance(p, ast.ExceptHandler) else [p])]
                found = {**_definitions(nested), **found}  # what an earlier branch defines stays
    return found


def _unfit(node: ast.stmt, name: str, columns: Mapping[str, str] | None, given: Sequence[str]) -> Iterator[str]:
    """Yield why a definition cannot be called with the arguments that are ``given`` and the columns of the data."""
    if isinstance(node, ast.ClassDef):
        yield f"defines `{name}` as a class: write a function, or an instance with `__call__`"
    elif isinstance(node, ast.Import):
        yield f"imports a module as `{name}`: name a function in it"
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        if isinstance(node.value, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Set | ast.JoinedStr):
            yield f"sets `{name}` to a value that is not callable: write a function"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        a = node.args
        usual = [*a.posonlyargs, *a.args]
        needed = usual[: len(usual) - len(a.defaults)]
        needed += [x for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
        there = [*given, *(columns or ())]
        if a.posonlyargs:
            yield f"takes `{a.posonlyargs[0].arg}` by position only: it is called with keyword arguments"
        elif columns is not None and (lacking := [x.arg for x in needed if x.arg not in there]):
            what = ", ".join(f"`{x}`" for x in lacking)
            yield f"needs {what}, and there are only {', '.join(f'`{x}`' for x in there)}: give it a default value"
        elif columns and (gaps := [(x.arg, columns[x.arg]) for x in needed if columns.get(x.arg)]):
            name, place = gaps[0]
            yield f"needs `{name}`, which {place} lacks: give it a default value, or add it to every row"


def scores(outcome: Outcome, count: int) -> tuple[list[float], Fault | None, str]:
    """Return the scores of a call, or how and why it failed.

    Args:
        outcome: of the call.
        count: responses that it scored.
    """
    if outcome.fault is not None:
        return [], outcome.fault, outcome.reason
    value = outcome.value
    if not isinstance(value, list):
        return [], "not_a_number", f"returned {_kind(value)}, not a list of numbers"
    if len(value) != count:
        return [], "wrong_length", f"returned {len(value)} scores for {count} responses"
    wrong = [x for x in value if not isinstance(x, bool | int | float)]
    if wrong:
        return [], "not_a_number", f"returned {_kind(wrong[0])} for {len(wrong)} of {count} responses"
    bad = [x for x in value if not (abs(x) <= MOST_SCORE)]
    if bad:
        return [], "not_finite", f"returned {_short(bad[0])} for {len(bad)} of {count} responses"
    return [float(x) for x in value], None, ""


Steps = list[tuple[int, float]]
"""The steps of a response: characters up to the end of each, ascending, and its reward."""


def step_scores(outcome: Outcome, texts: Sequence[str]) -> tuple[list[Steps], Fault | None, str]:
    """Return the steps of each response of a call, or how and why it failed.

    Args:
        outcome: of the call.
        texts: the responses.
    """
    if outcome.fault is not None:
        return [], outcome.fault, outcome.reason
    value = outcome.value
    if not isinstance(value, list):
        return [], "not_a_number", f"returned {_kind(value)}, not a list with the steps of each response"
    if len(value) != len(texts):
        return [], "wrong_length", f"returned steps of {len(value)} for {len(texts)} responses"
    found: list[Steps] = []
    for rows, text in zip(value, texts, strict=True):
        steps: Steps = []
        for row in rows if isinstance(rows, list) else [rows]:
            if not isinstance(row, list) or len(row) != 2 or type(row[0]) is not int or not _is_score(row[1]):
                return [], "not_a_number", f"returned {str(row)[:40]} for a step, not [end, number]"
            if not (steps[-1][0] if steps else 0) < row[0] <= len(text):
                return [], "wrong_length", f"ends a step at {row[0]} of {len(text)} characters, or not behind the last"
            steps.append((row[0], float(row[1])))
        found.append(steps)
    return found, None, ""


def _is_score(x: object) -> bool:
    return isinstance(x, bool | int | float) and abs(x) <= MOST_SCORE


def _short(number: float) -> str:
    """Return a number that is no score, in a few letters."""
    return f"{number:.3g}" if isinstance(number, float) else f"a whole number of {len(str(abs(number)))} digits"


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"the text {value[:40]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
