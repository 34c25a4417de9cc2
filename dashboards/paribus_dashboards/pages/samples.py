"""Responses to read: the group of a prompt side by side, and what has changed against another step or another arm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from paribus.track.samples import Sample
from paribus_dashboards.choices import Link, Other, Place, at, chosen_run, chosen_set, chosen_step, run_options
from paribus_dashboards.difference import Difference, difference, nearest
from paribus_dashboards.groups import ORDERS, Counted, Group, in_order, order_of
from paribus_dashboards.heat import spread_out
from paribus_dashboards.home import Home
from paribus_dashboards.visible import one_line, visible
from paribus_dashboards.web import Page, home_of, render

MOST_LISTED, MOST_SHOWN, MOST_STEPS = 200, 64, 1000
"""Prompts in the list, responses of a group, and stops of the slider."""

MOST_EXPORTED = 12
"""Prompts that an export takes along."""

MOST_CHARACTERS = 100_000
"""Characters of a response that a page shows."""

_KEY = re.compile(r"[0-9a-f]{16}")
_MEASURES: Mapping[str, str] = {
    "correct": "whether it is correct",
    "reward": "reward",
    "parts": "parts of the reward",
    "advantage": "advantage",
    "tokens": "length in tokens",
    "finished": "whether it was cut off",
    "mismatch": "difference of the log-probabilities of learner and sampler",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A prompt in the list.

    Attributes:
        link: leads to its group; the text is the beginning of the prompt.
        facts: its numbers in words.
        flat: whether its group has no spread.
    """

    link: Link
    facts: tuple[str, ...]
    flat: bool


@dataclass(frozen=True, kw_only=True)
class Card:
    """One response.

    Attributes:
        title: its number.
        verdict: ``correct``, ``incorrect``, or empty where it was not judged.
        truncated: whether it hit the length limit.
        facts: name and value of what was recorded beside.
        text: the response as HTML, or its difference to the other one.
        note: what is said of the difference, or why there is none.
        cut: how much of a very long response is shown; else empty.
    """

    title: str
    verdict: str
    truncated: bool
    facts: tuple[tuple[str, str], ...]
    text: Markup
    note: str
    cut: str


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """The group of the chosen prompt.

    Attributes:
        problem: identity of the problem.
        prompt: as HTML; empty where none was kept.
        sentence: what its numbers say.
        answers: extracted answers with their counts, in words.
        cards: the responses.
        hidden: responses beyond those that a page shows.
        missing: what the trainer did not record, in words.
        notice: why nothing is compared though it was asked for; else empty.
        compared: whether the texts show what has changed.
    """

    problem: Markup
    prompt: Markup
    sentence: str
    answers: tuple[str, ...]
    cards: tuple[Card, ...]
    hidden: int
    missing: tuple[str, ...]
    notice: str
    compared: bool


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The prompts of one step.

    Attributes:
        entries: in the chosen order.
        hidden: groups of the step that are not listed.
        orders: the orders that there are.
    """

    entries: tuple[Entry, ...]
    hidden: int
    orders: tuple[Link, ...]


# ---- pure: what the page says --------------------------------------------------------------------


def view(group: Group, other: Other | None) -> GroupView:
    """Lay out a group.

    Args:
        group: the group.
        other: what it is compared with.
    """
    shown = group.samples[:MOST_SHOWN]
    there = other if other and other.group else None
    return GroupView(
        problem=visible(group.problem),
        prompt=visible(group.prompt),
        sentence=sentence(group),
        answers=_answers(group.counted),
        cards=tuple(_card(i, sample, there) for i, sample in enumerate(shown)),
        hidden=len(group.samples) - len(shown),
        missing=tuple(
            words for name, words in _MEASURES.items() if shown and all(getattr(s, name) in (None, {}) for s in shown)
        ),
        notice=f"No response to this prompt was kept at {other.title}." if other and not there else "",
        compared=there is not None,
    )


def sentence(group: Group) -> str:
    """Return what the numbers of a group say: of all its responses where an evaluation counted them."""
    known, kept = group.counted, len(group.samples)
    if known:
        cut = f", {known.truncated} cut off at the length limit" if known.truncated else ""
        mean = f"{known.tokens / known.k:.1f} tokens on average"
        return f"{known.correct} of {known.k} responses correct{cut}, {mean}. {_kept(kept, known.k)}"
    parts = [f"{kept} response{'s' * (kept != 1)} kept as text"]
    if group.mean is not None:
        parts.append(f"mean {_scored(group)} {group.mean:.3g}")
    if group.spread is not None:
        parts.append("no spread: the group teaches nothing" if group.flat else f"spread {group.spread:.3g}")
    return "; ".join(parts) + "."


def _kept(kept: int, k: int) -> str:
    if kept == 0:
        return "None of them was kept as text."
    return "All of them are kept as text." if kept == k else f"{kept} of them kept as text."


def _scored(group: Group) -> str:
    return "reward" if any(s.reward is not None for s in group.samples) else "share correct"


def _answers(known: Counted | None) -> tuple[str, ...]:
    if known is None:
        return ()
    return tuple(
        f"{one_line(answer, 40) or 'no answer'} \u00d7{n}{' (right)' if answer in known.right else ''}"
        for answer, n in known.answers[:12]
    )


def _card(place: int, sample: Sample, other: Other | None) -> Card:
    size = len(sample.response)
    length = ("characters", size) if sample.tokens is None else ("tokens", sample.tokens)
    facts = (
        ("reward", _reward(sample)),
        ("advantage", _number(sample.advantage)),
        (length[0], f"{length[1]:,}"),
        ("log-prob mismatch", _number(sample.mismatch)),
    )
    text, note = _text(place, sample, other)
    return Card(
        title=f"Response {place + 1 if sample.number is None else sample.number + 1}",
        verdict="" if sample.correct is None else "correct" if sample.correct else "incorrect",
        truncated=sample.finished is False,
        facts=tuple((name, value) for name, value in facts if value),
        text=text,
        note=note,
        cut=f"The first {MOST_CHARACTERS:,} of {size:,} characters." if size > MOST_CHARACTERS else "",
    )


def _reward(sample: Sample) -> str:
    parts = ", ".join(f"{name} {_number(x)}" for name, x in sample.parts.items())
    whole = _number(sample.reward)
    return f"{whole} ({parts})" if whole and parts else whole or parts


def _number(value: float | None) -> str:
    return "" if value is None else f"{value + 0.0:.4g}"  # no minus before 0


def _text(place: int, sample: Sample, other: Other | None) -> tuple[Markup, str]:
    own = sample.response[:MOST_CHARACTERS]
    if other is None:
        return visible(own), ""
    assert other.group is not None
    texts = [s.response[:MOST_CHARACTERS] for s in other.group.samples]
    at = nearest(own, texts, place)
    found = difference(texts[at], own)
    return marked(found), _told(found, f"response {at + 1} of {other.title}" if len(texts) > 1 else other.title)


def _told(found: Difference, title: str) -> str:
    if found.shared == 1.0:
        return f"The same as {title}."
    far = "; too different to be aligned, so all between their common ends is marked" if found.whole else ""
    return f"Against {title}: {found.shared:.0%} the same, {found.unit} by {found.unit}{far}."


def marked(found: Difference) -> Markup:
    """Return a difference as HTML: what is gone struck through, what is new underlined."""
    frames = {"same": Markup("{}"), "gone": Markup("<del>{}</del>"), "new": Markup("<ins>{}</ins>")}
    return Markup("").join(frames[p.kind].format(visible(p.text)) for p in found.parts)


def listing(groups: Sequence[Group], total: int, address: str, query: QueryParams, chosen: str) -> Listing:
    """Lay out the prompts of a step.

    Args:
        groups: those that were read.
        total: how many the step has.
        address: of the page.
        query: what the page was asked for.
        chosen: key of the prompt that is shown.
    """
    order = order_of(query.get("order", ""))
    shown = in_order(groups, order)[:MOST_LISTED]
    entries = tuple(
        Entry(
            link=Link(
                href=at(address, query, problem=g.key), text=one_line(g.prompt or g.problem, 90), chosen=g.key == chosen
            ),
            facts=_facts(g),
            flat=g.flat is True,
        )
        for g in shown
    )
    orders = tuple(Link(href=at(address, query, order=o), text=words, chosen=o == order) for o, words in ORDERS.items())
    return Listing(entries=entries, hidden=total - len(entries), orders=orders)


def _facts(group: Group) -> tuple[str, ...]:
    found = []
    if group.counted:
        found.append(f"{group.counted.correct}/{group.counted.k} correct")
    elif group.mean is not None:
        found.append(f"{_scored(group)} {group.mean:.3g}")
    if group.spread is not None and not group.flat:
        found.append(f"spread {group.spread:.2g}")
    if group.length is not None:
        found.append(f"{group.length[0]:.0f} {group.length[1]}")
    if group.repetition:
        found.append(f"{group.repetition:.0%} repeated")
    return tuple(found)


# ---- what is asked for ---------------------------------------------------------------------------


router = APIRouter()


@router.get("/study/{study}/samples")
def show(request: Request, study: str) -> Response:
    """Show the prompts of a step, and the group of one of them."""
    home, query, address = home_of(request), request.query_params, page.address(study)
    now = home.study(study)
    run = chosen_run(home, now, query)
    if run is None:
        return render(request, "not_begun.html", page, study)
    reading = home.reading(run)
    name = chosen_set(reading, query)
    steps = reading.sampled(name) or reading.evaluated(name)
    common = {"run": run, "runs": run_options(now, run), "sets": reading.sets, "set": name, "reading": reading}
    if not steps:
        return render(request, "samples.html", page, study, **common, steps=())
    step, missed = chosen_step(steps, query)
    groups, total = reading.groups(name, step)
    first = in_order(groups, order_of(query.get("order", "")))[:1]
    key = query.get("problem", "")
    key = key if _KEY.fullmatch(key) else "".join(g.key for g in first)
    shown = Place(study=now, run=run, reading=reading, set=name, step=step, key=key)
    group, asked, number = shown.group(groups), query.get("with", ""), steps.index(step)
    return render(
        request,
        "samples.html",
        page,
        study,
        **common,
        steps=sorted({*spread_out(steps, MOST_STEPS), step}),
        step=step,
        missed=missed,
        count=len(steps),
        newest=at(address, query, step="") if step != steps[-1] else "",
        before=at(address, query, step=str(steps[number - 1])) if number else "",
        after=at(address, query, step=str(steps[number + 1])) if number + 1 < len(steps) else "",
        texts=bool(reading.sampled(name)),
        listing=listing(groups, total, address, query, key),
        key=key,
        group=view(group, shown.other(home, asked)) if group else None,
        others=shown.others(asked) if group else {},
        elsewhere=() if group else [Link(href=at(address, query, step=str(s)), text=str(s)) for s in shown.nearest()],
    )


def exported(home: Home, study: str) -> Iterator[str]:
    """Yield what an export shows beside: the prompts of the newest step of the run that is shown first."""
    run = chosen_run(home, home.study(study), QueryParams())
    if run is None:
        return
    reading = home.reading(run)
    name = chosen_set(reading, QueryParams())
    for step in reading.sampled(name)[-1:]:
        for group in reading.groups(name, step)[0][:MOST_EXPORTED]:
            yield at(page.address(study), QueryParams(), problem=group.key)


page = Page(key="samples", title="Samples", place=4, router=router, also=exported)
