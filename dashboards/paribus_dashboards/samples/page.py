"""The samples page: the responses to a prompt side by side, and their difference to another step or another arm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from paribus.run_folder.folder import SHORT
from paribus.run_folder.samples import Sample
from paribus.text import plural
from paribus_dashboards.choices import Link, at, chosen_run, chosen_set, run_links, run_options, spread_out
from paribus_dashboards.data.groups import ORDERS, Counted, Group, in_order, order_of
from paribus_dashboards.data.home import Home
from paribus_dashboards.format import one_line
from paribus_dashboards.samples.selection import Reference, Selection, chosen_step
from paribus_dashboards.samples.visible_text import visible
from paribus_dashboards.samples.word_diff import Difference, difference, nearest
from paribus_dashboards.web import Page, home_of, render

MAX_LISTED, MAX_SHOWN, MAX_STEPS = 200, 64, 1000
"""Most prompts in the list, responses of a group, and stops of the slider."""

MAX_EXPORTED = 12
"""Most prompts in an export."""

MAX_CHARACTERS = 100_000
"""Most characters of a response that the page shows."""

_KEY = re.compile(r"[0-9a-f]{16}")
_VALUES: Mapping[str, str] = {
    "correct": "whether it is correct",
    "reward": "reward",
    "parts": "parts of the reward",
    "advantage": "advantage",
    "tokens": "length in tokens",
    "finished": "whether it reached the length limit",
    "mismatch": "log-probability difference of learner and sampler",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A prompt in the list.

    Attributes:
        link: link to its group; the text is the beginning of the prompt.
        facts: its numbers, as short texts.
        flat: whether its group has no spread.
    """

    link: Link
    facts: tuple[str, ...]
    flat: bool


@dataclass(frozen=True, kw_only=True)
class Card:
    """One response.

    Attributes:
        title: e.g. ``Response 1``.
        verdict: ``correct``, ``incorrect``, or empty if correctness was not recorded.
        truncated: whether it reached the length limit.
        facts: name and value of the recorded numbers.
        text: the response as HTML, or its difference to the compared one.
        note: a sentence about the difference; empty without a comparison.
        cut: how much of a very long response is shown; empty if all is.
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
        problem: identity of the problem, as HTML.
        prompt: text of the prompt, as HTML; empty if none was kept.
        sentence: the numbers of the group.
        answers: extracted answers with their counts.
        cards: the responses.
        hidden: number of responses that are not shown.
        missing: values that the trainer did not record.
        notice: why a requested comparison is not shown; empty otherwise.
        compared: whether the texts are differences.
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
        entries: the prompts, in the chosen order.
        hidden: number of groups of the step that are not listed.
        orders: links to all orders.
    """

    entries: tuple[Entry, ...]
    hidden: int
    orders: tuple[Link, ...]


# ---- view --------------------------------------------------------------------


def view(group: Group, reference: Reference | None) -> GroupView:
    """Lay out a group.

    Args:
        group: the group.
        reference: what it is compared with.
    """
    shown = group.samples[:MAX_SHOWN]
    compared = reference.group if reference else None
    return GroupView(
        problem=visible(group.problem),
        prompt=visible(group.prompt),
        sentence=sentence(group),
        answers=_answers(group.counted),
        cards=tuple(_card(i, sample, reference.title if reference else "", compared) for i, sample in enumerate(shown)),
        hidden=len(group.samples) - len(shown),
        missing=tuple(
            title for name, title in _VALUES.items() if shown and all(getattr(s, name) in (None, {}) for s in shown)
        ),
        notice=f"No response to this prompt was kept at {reference.title}." if reference and not compared else "",
        compared=compared is not None,
    )


def sentence(group: Group) -> str:
    """Return the numbers of a group as a sentence; over all its responses if an evaluation counted them."""
    known, kept = group.counted, len(group.samples)
    if known:
        cut = f", {known.truncated} reached the length limit" if known.truncated else ""
        mean = f"{known.tokens / known.k:.1f} tokens on average"
        return f"{known.correct} of {plural(known.k, 'response')} correct{cut}, {mean}. {_kept(kept, known.k)}"
    parts = [f"{plural(kept, 'response')} kept as text"]
    if group.mean is not None:
        parts.append(f"mean {_scored(group)} {group.mean:.3g}")
    if group.spread is not None:
        parts.append("no spread, so the group gives no gradient" if group.flat else f"spread {group.spread:.3g}")
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


def _card(place: int, sample: Sample, title: str, compared: Group | None) -> Card:
    size = len(sample.response)
    length = ("characters", size) if sample.tokens is None else ("tokens", sample.tokens)
    facts = (
        ("reward", _reward(sample)),
        ("advantage", _number(sample.advantage)),
        (length[0], f"{length[1]:,}"),
        ("log-prob mismatch", _number(sample.mismatch)),
    )
    text, note = _text(place, sample, title, compared)
    return Card(
        title=f"Response {place + 1 if sample.number is None else sample.number + 1}",
        verdict="" if sample.correct is None else "correct" if sample.correct else "incorrect",
        truncated=sample.finished is False,
        facts=tuple((name, value) for name, value in facts if value),
        text=text,
        note=note,
        cut=f"The first {MAX_CHARACTERS:,} of {size:,} characters." if size > MAX_CHARACTERS else "",
    )


def _reward(sample: Sample) -> str:
    parts = ", ".join(f"{name} {_number(x)}" for name, x in sample.parts.items())
    whole = _number(sample.reward)
    return f"{whole} ({parts})" if whole and parts else whole or parts


def _number(value: float | None) -> str:
    return "" if value is None else f"{value + 0.0:.4g}"  # no minus before 0


def _text(place: int, sample: Sample, title: str, compared: Group | None) -> tuple[Markup, str]:
    own = sample.response[:MAX_CHARACTERS]
    if compared is None:
        return turns(own, sample.given), ""
    texts = [s.response[:MAX_CHARACTERS] for s in compared.samples]
    at = nearest(own, texts, place)
    found = difference(texts[at], own)
    return marked(found), _note(found, f"response {at + 1} of {title}" if len(texts) > 1 else title)


def turns(text: str, given: Sequence[tuple[int, int]]) -> Markup:
    """Return a response as HTML, with what an environment wrote marked."""
    frame, found, end = Markup('<mark title="written by the environment">{}</mark>'), list[Markup](), 0
    for first, behind in given:
        if first < len(text):
            found += [visible(text[end:first]), frame.format(visible(text[first:behind]))]
            end = behind
    return Markup("").join([*found, visible(text[end:])])


def _note(found: Difference, title: str) -> str:
    if found.shared == 1.0:
        return f"Identical to {title}."
    far = "; too different to align, so everything between their common ends is marked" if found.whole else ""
    return f"Compared with {title}: {found.shared:.0%} of {found.unit}s unchanged{far}."


def marked(found: Difference) -> Markup:
    """Return a difference as HTML: gone parts struck through, new parts underlined."""
    frames = {"same": Markup("{}"), "gone": Markup("<del>{}</del>"), "new": Markup("<ins>{}</ins>")}
    return Markup("").join(frames[p.kind].format(visible(p.text)) for p in found.parts)


def listing(groups: Sequence[Group], total: int, address: str, query: QueryParams, chosen: str) -> Listing:
    """Lay out the prompts of a step.

    Args:
        groups: the groups that were read.
        total: number of groups of the step.
        address: address of the page.
        query: query of the request.
        chosen: key of the shown prompt.
    """
    order = order_of(query.get("order", ""))
    shown = in_order(groups, order)[:MAX_LISTED]
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
    orders = tuple(Link(href=at(address, query, order=o), text=title, chosen=o == order) for o, title in ORDERS.items())
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


# ---- routes ---------------------------------------------------------------------------


router = APIRouter()


@router.get("/study/{study}/samples")
def show(request: Request, study: str) -> Response:
    """Show the prompts of a step, and the group of one of them."""
    home, query, address = home_of(request), request.query_params, page.address(study)
    now = home.study(study)
    run = chosen_run(home, now, query)
    if run is None:
        return render(request, "no_runs.html", page, study)
    samples = home.samples(run)
    name = chosen_set(samples, query)
    steps = samples.sampled(name) or samples.evaluated(name)
    common = {"run": run, "runs": run_options(now, run), "more_runs": run_links(now, run, address)}
    common |= {"sets": samples.sets, "set": name, "samples": samples}
    if not steps:
        return render(request, "samples/page.html", page, study, **common, steps=())
    step, missed = chosen_step(steps, query)
    groups, total = samples.groups(name, step)
    first = in_order(groups, order_of(query.get("order", "")))[:1]
    key = query.get("problem", "")
    key = key if _KEY.fullmatch(key) else "".join(g.key for g in first)
    shown = Selection(study=now, run=run, samples=samples, set=name, step=step, key=key)
    group, asked, number = shown.group(groups), query.get("with", ""), steps.index(step)
    return render(
        request,
        "samples/page.html",
        page,
        study,
        **common,
        steps=sorted({*spread_out(steps, MAX_STEPS), step}),
        step=step,
        missed=missed,
        count=len(steps),
        newest=at(address, query, step="") if step != steps[-1] else "",
        before=at(address, query, step=str(steps[number - 1])) if number else "",
        after=at(address, query, step=str(steps[number + 1])) if number + 1 < len(steps) else "",
        texts=bool(samples.sampled(name)),
        listing=listing(groups, total, address, query, key),
        key=key,
        exact=at(address, query, run=run.fingerprint[:SHORT], set=name, step=str(step), problem=key),
        group=view(group, shown.reference(home, asked)) if group else None,
        references=shown.reference_options(asked) if group else {},
        elsewhere=() if group else [Link(href=at(address, query, step=str(s)), text=str(s)) for s in shown.nearest()],
    )


def exported(home: Home, study: str) -> Iterator[str]:
    """Yield further addresses of an export: the prompts of the newest step of the default run."""
    run = chosen_run(home, home.study(study), QueryParams())
    if run is None:
        return
    samples = home.samples(run)
    name = chosen_set(samples, QueryParams())
    for step in samples.sampled(name)[-1:]:
        for group in samples.groups(name, step)[0][:MAX_EXPORTED]:
            yield at(page.address(study), QueryParams(), problem=group.key)


page = Page(key="samples", title="Samples", place=4, router=router, also=exported)
