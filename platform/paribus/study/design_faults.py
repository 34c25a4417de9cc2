"""Mistakes in designs whose syntax is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paribus.study.dependencies import Dependencies, name_faults
from paribus.study.designs import MAX_ROWS, UNASKED_ROWS, ladders, other_orders, row_count, stated_orders, value_label
from paribus.study.fractions import MAX_TRICKS, MIN_TRICKS, best_fraction
from paribus.study.spec import (
    AddOne,
    Cumulative,
    Design,
    Factorial,
    Fractional,
    Grid,
    LeaveOneOut,
    Listed,
    OneAtATime,
    Pairs,
    Search,
    Study,
)
from paribus.yaml_file.document import Fault

ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX", 10: "X"}
"""How resolutions are written."""


def design_faults(name: str, study: Study, defined: Sequence[str], rules: Dependencies) -> list[Fault]:
    """Return the faults of one design.

    Args:
        name: of the design.
        study: the study.
        defined: all names under ``tricks``, also of tricks with faults.
        rules: ``needs`` and ``conflicts``.
    """
    design = study.designs[name]
    faults = [*trick_faults(name, design, defined)]
    if isinstance(design, Cumulative) and not faults:
        faults += _order_faults(name, design, study) or _ladder_faults(name, design, rules)
    elif not faults:
        faults += _combination_faults(name, design, defined, rules)
    if isinstance(design, (Pairs, Fractional)):
        faults += _few_faults(name, design, design.tricks or defined)
    if isinstance(design, Search):
        faults += _search_faults(name, study)
    return faults or [*_size_faults(name, design, study, row_count(design, defined, rules))]


def tricks_of(design: Design, defined: Sequence[str]) -> tuple[str, ...]:
    """Return the tricks that a design names; of a fraction all that decide about its rows."""
    if isinstance(design, Fractional):
        return design.tricks or tuple(defined)
    return tuple(trick for _, tricks in _named_tricks(design) for trick in tricks)


def trick_faults(name: str, design: Design, defined: Sequence[str], possible: Sequence[str] = ()) -> Iterator[Fault]:
    """Yield the tricks that a design names and the study lacks, or that it names twice; and that it has none.

    The names of tricks are as in :func:`.name_faults`.
    """
    for place, tricks in _named_tricks(design):
        yield from name_faults(("designs", name, *place), tricks, defined, possible)
    none = not defined and not possible
    if isinstance(design, (AddOne, LeaveOneOut, Factorial)) and design.tricks is None and none:
        other = " or name a preset whose parts are taken, e.g. `path: {to: dapo}`"
        message = f"`{design.kind}` needs tricks: define some under `tricks`,{other}"
        yield Fault(place=("designs", name), message=message)
    if isinstance(design, Listed) and "base" in design.arms:
        message = "the first row of every list is `base`: give this arm another name"
        yield Fault(place=("designs", name, "arms", "base"), message=message, at_key=True)


def _order_faults(name: str, design: Cumulative, study: Study) -> list[Fault]:
    return [*_wrong_orders(name, design, study)]


def _wrong_orders(name: str, design: Cumulative, study: Study) -> Iterator[Fault]:
    place = ("designs", name)
    if design.order is None and design.orders is None:
        every = ", ".join(study.tricks) or "first, second"
        message = f"`order` is missing, or `orders`: write the tricks as they are added, e.g. `order: [{every}]`"
        yield Fault(place=place, message=message, at_key=True)
        return
    if design.order is not None and design.orders is not None:
        message = "`order` and `orders` exclude each other: put all orders into `orders`"
        yield Fault(place=(*place, "orders"), message=message, at_key=True)
        return
    first, *rest = stated_orders(design)
    for k, order in enumerate(rest, start=1):
        if order in (first, *rest[: k - 1]):
            yield Fault(place=(*place, "orders", k), message="this order appears twice")
        elif set(order) != set(first):
            message = "has other tricks than the first order: write another design for them"
            yield Fault(place=(*place, "orders", k), message=message)
    if design.random is not None:
        asked, left = design.random.n * (2 if design.reverse else 1), other_orders(design)
        if asked > left:
            most = left // (2 if design.reverse else 1)
            remedy = f"write {most}" + " or fewer" * (most > 1) if most else "leave `random` out"
            there = f"{len(first)} tricks have {left} more"
            message = f"asks for {asked} orders beside those written out; {there}: {remedy}"
            yield Fault(place=(*place, "random", "n"), message=message)
            return
    for ladder, _ in ladders(name, design)[1:]:
        if ladder in study.designs:
            message = f"a further ladder of the design `{name}` already has the name `{ladder}`: choose another one"
            yield Fault(place=("designs", ladder), message=message, at_key=True)


def _ladder_faults(name: str, design: Cumulative, rules: Dependencies) -> list[Fault]:
    """Return the tricks of ladders that stand before what they need, or conflict."""
    faults: list[Fault] = []
    place: tuple[str | int, ...] = ("designs", name)
    for k, order in enumerate(stated_orders(design)):
        where = (*place, "orders", k) if design.orders else (*place, "order")
        faults += _lacking(where, order, rules, "this order")
        for first, second in rules.conflicting(order):
            message = f"`{first}` and `{second}` conflict, and a ladder keeps each trick: write two ladders"
            faults.append(Fault(place=(*where, order.index(second)), message=message))
        for trick in order:
            needed = rules.needed_by(trick)
            late = [other for other in order[order.index(trick) :] if other in needed]
            if late:
                right = ", ".join(rules.in_order(order))
                message = f"`{trick}` needs {_names(late)}, which this order adds later. This order would do: [{right}]"
                faults.append(Fault(place=(*where, order.index(trick)), message=message))
    order = stated_orders(design)[0]
    pair = next(((t, other) for t in order for other in order if other in rules.needed_by(t)), None)
    for key, asked in (("reverse", design.reverse), ("random", design.random is not None)):
        if pair and asked and not faults:
            message = (
                f"orders may have `{pair[0]}` before `{pair[1]}`, which it needs: write those that do into `orders`"
            )
            faults.append(Fault(place=(*place, key), message=message, at_key=True))
    return faults


def _combination_faults(name: str, design: Design, defined: Sequence[str], rules: Dependencies) -> list[Fault]:
    """Return where a design other than a ladder would make rows that break ``needs`` or ``conflicts``."""
    if isinstance(design, Listed):
        return [fault for label, arm in design.arms.items() for fault in _arm_faults(name, label, arm.tricks, rules)]
    if not isinstance(design, (LeaveOneOut, Factorial, Fractional, Pairs, Search)):
        return []
    given = design.tricks is not None
    tricks: Sequence[str] = design.tricks or (() if isinstance(design, Search) and given else defined)
    place: tuple[str | int, ...] = ("designs", name, "tricks") if given else ("designs", name)
    if isinstance(design, LeaveOneOut):
        why = [f"`{a}` and `{b}` conflict, and `full` would have both" for a, b in rules.conflicting(tricks)]
        remedy = f"name tricks that go together, e.g. `tricks: [{', '.join(rules.compatible(tricks))}]`"
        faults = [*_lacking(place, tricks, rules, "this design", listed=given)]
        return [*faults, *(Fault(place=place, message=f"{text}: {remedy}") for text in why)]
    why = [f"`{t}` needs {_names(sorted(rules.needed_by(t)))}" for t in tricks if rules.needed_by(t)]
    if isinstance(design, Search):
        remedy = "a search tunes each trick by itself: write them as one trick, or name others in `tricks`"
    else:
        why += [f"`{a}` and `{b}` conflict" for a, b in rules.conflicting(tricks)]
        free = ", ".join(rules.independent(tricks))
        remedy = (
            f"`{design.kind}` has rows with and without each trick, in any combination: name tricks that allow this, "
            f"e.g. `tricks: [{free}]`, write what belongs together as one trick, or write the arms out in a `list`"
        )
    return [Fault(place=place, message=f"{'; '.join(why)}. {remedy[0].upper()}{remedy[1:]}")] if why else []


def _arm_faults(name: str, label: str, tricks: Sequence[str], rules: Dependencies) -> Iterator[Fault]:
    place = ("designs", name, "arms", label, "tricks")
    yield from _lacking(place, tricks, rules, "this arm")
    for first, second in rules.conflicting(tricks):
        message = f"`{first}` and `{second}` conflict: leave one out"
        yield Fault(place=(*place, tricks.index(second)), message=message)


def _lacking(
    place: tuple[str | int, ...], tricks: Sequence[str], rules: Dependencies, where: str, *, listed: bool = True
) -> Iterator[Fault]:
    for trick, others in rules.missing(tricks):
        message = f"`{trick}` needs {_names(others)}, which {where} lacks: add it, or leave `{trick}` out"
        yield Fault(place=(*place, tricks.index(trick)) if listed else place, message=message)


def _names(tricks: Sequence[str]) -> str:
    return ", ".join(f"`{trick}`" for trick in tricks)


def _few_faults(name: str, design: Pairs | Fractional, tricks: Sequence[str]) -> Iterator[Fault]:
    place, k = ("designs", name), len(tricks)
    least, other = (2, "`add_one`") if isinstance(design, Pairs) else (MIN_TRICKS, "`factorial`, without `resolution`")
    if k < least:
        yield Fault(
            place=place, message=f"`{design.kind}` needs {least} tricks or more, and there are {k}: use {other}"
        )
    elif isinstance(design, Fractional) and k > MAX_TRICKS:
        yield Fault(place=place, message=f"`fractional` takes at most {MAX_TRICKS} tricks, and there are {k}")
    elif isinstance(design, Fractional) and best_fraction(k, design.resolution).resolution is None:
        best = max(r for r in (3, 4, 5) if best_fraction(k, r).resolution is not None)
        message = (
            f"no fraction of {k} tricks has resolution {ROMAN[design.resolution]}: use `resolution: {best}`, "
            f"{len(best_fraction(k, best).cells)} rows, or `factorial` without `resolution`, {2**k} rows"
        )
        yield Fault(place=(*place, "resolution"), message=message)


def _search_faults(name: str, study: Study) -> Iterator[Fault]:
    first = next(other for other, design in study.designs.items() if isinstance(design, Search))
    if first != name:
        message = f"a study has one search, and `{first}` is one: tune all paths in it, or write another study"
        yield Fault(place=("designs", name), message=message, at_key=True)
    if study.seeds.until is not None:
        message = "a search confirms on a stated number of seeds: write `seeds: {n: ...}`, without looks"
        yield Fault(place=("seeds",), message=message)
    rates = tuple(f"eval/{name}/{rate}" for name, each in study.evaluate.all_sets.items() for rate in each.rates)
    if study.evaluate.primary_metric not in rates:
        message = f"a search needs a metric of which more is better: {', '.join(rates)}"
        yield Fault(place=("evaluate", "primary"), message=message)


def _size_faults(name: str, design: Design, study: Study, count: int) -> Iterator[Fault]:
    allowed = study.budget.rows or UNASKED_ROWS
    if count > MAX_ROWS:
        yield Fault(place=("designs", name), message=f"makes {count:,} rows; at most {MAX_ROWS:,} are allowed")
    elif count > allowed:
        message = f"makes {count:,} rows; more than {allowed:,} have to be asked for: `budget: {{rows: {count}}}`"
        yield Fault(place=("designs", name), message=message)
    if isinstance(design, (Grid, OneAtATime)):
        for path, values in design.over.items():
            shown = [value_label(v) for v in values]
            for k, value in enumerate(shown):
                if value in shown[:k]:
                    yield Fault(place=("designs", name, "over", path, k), message=f"the value {value} appears twice")


def _named_tricks(design: Design) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...]]]:
    match design:
        case Cumulative():
            yield ("order",), design.order or ()
            for k, order in enumerate(design.orders or ()):
                yield ("orders", k), order
        case AddOne() | LeaveOneOut() | Factorial() | Pairs() | Fractional() | Search():
            yield ("tricks",), design.tricks or ()
        case Listed():
            for label, arm in design.arms.items():
                yield ("arms", label, "tricks"), arm.tricks
        case Grid() | OneAtATime():
            pass
