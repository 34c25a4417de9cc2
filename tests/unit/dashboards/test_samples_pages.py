"""The pages with samples and the map of prompts, over run folders."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from paribus.run_folder.folder import Evaluation, RunFolder
from paribus.run_folder.samples import key_of
from paribus.store.models import RunRecord
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus_dashboards.data import sample_index
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.sample_index import SampleIndex
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.studies import Shape, made_up_study

PAGE = "/study/made-up/samples"
KEY = f"{key_of('p<0>'):016x}"


def _record(step: int, number: int, text: str, **more: object) -> str:
    known = {"step": step, "set": "train", "problem": "p<0>", "prompt": "2 + 3 =\n", "response": text, "sample": number}
    return json.dumps(known | more) + "\n"


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[RunRecord, ...]]:
    """A home whose first two arms kept groups of training as text, as another trainer would write them."""
    home = tmp_path_factory.mktemp("reading") / "home"
    shutil.copytree(folder, home)
    with Reader.open(home) as reader:
        records = reader.runs_of(reader.study("made-up").id)
    parts = {"correct": 1.0, "length": -0.25}
    full = {"reward_parts": parts, "advantage": 1.5, "tokens": 12, "logp_abs_diff_mean": 0.02}
    for place, run in enumerate(records[:2]):
        lines = [_record(s, 0, f"the answer is {s}", reward=0.75, correct=True, **full) for s in (2, 4)]
        lines += [_record(s, 1, "<b>bold</b>\t\x1b ", reward=-1.0, correct=False, finished=False) for s in (2, 4)]
        lines.append(_record(4, 0, "one", problem="q", prompt="q?", reward=1.0))
        lines.append(_record(4, 1, "one", problem="q", prompt="q?", reward=1.0))
        text = "".join(lines if place == 0 else lines[1:2])
        RunFolder.of(home, run.fingerprint, run.token).samples.write_text(text)
    return home, records


@pytest.fixture(scope="module")
def browser(runs: tuple[Path, tuple[RunRecord, ...]]) -> Iterator[TestClient]:
    """A browser without a browser over that home."""
    home = Home(runs[0])
    with TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost") as client:
        yield client


def _text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def test_group_is_shown_with_all_that_was_recorded(browser: TestClient) -> None:
    """Responses stand side by side with what the trainer recorded of them; their text is text, and marked."""
    html = browser.get(f"{PAGE}?set=train&step=4&problem={KEY}").text
    text = _text(html)
    assert text.count("Response 1") == text.count("Response 2") == 1
    assert "reward 0.75 (correct 1, length -0.25) advantage 1.5 tokens 12 log-prob mismatch 0.02" in text
    assert "reward -1 characters 14" in text
    assert "reached the length limit" in text
    assert '&lt;b&gt;bold&lt;/b&gt;<i data-mark="⇥">\t</i><b title="U+001B">␛</b><i data-mark="·"> </i>' in html
    assert "2 responses kept as text; mean reward -0.125; spread 0.875" in text
    assert "Not recorded" not in text


EVIL = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre><svg onload=alert(1)>",
    "<a href='javascript:x'>", "\" onmouseover=\"alert(1)", "{{7*7}}{% include '/etc/passwd' %}",
    "<style>*{display:none}</style>", "]]><!--",
)  # fmt: skip
"""What a model could write to become a part of a page."""


def test_a_response_never_becomes_markup(folder: Path, tmp_path: Path) -> None:
    """In prompts, responses, names of problems and of parts of the reward; in each page that shows them."""
    home = tmp_path / "home"
    shutil.copytree(folder, home)
    with Reader.open(home) as reader:
        run = reader.runs_of(reader.study("made-up").id)[0]
    evil = "".join(EVIL)
    lines = [
        _record(step, number, f"{evil}{number}", problem=evil, prompt=evil, reward=0.5, reward_parts={evil: 0.5})
        for step in (2, 4) for number in (0, 1)
    ]  # fmt: skip
    RunFolder.of(home, run.fingerprint, run.token).samples.write_text("".join(lines))
    group = f"{PAGE}?set=train&step=4&problem={key_of(evil):016x}"
    addresses = (group, f"{group}&with=step-2", f"{PAGE}?set=train&order=spread", "/study/made-up/heatmap?set=train")
    with TestClient(make_app(Home(home), access=Access(), keep_s=0), base_url="http://localhost") as client:
        pages = [client.get(address).text for address in addresses]
    for page in pages:
        assert "&lt;script&gt;alert(1)" in page
        for tag in EVIL[:4]:
            assert tag not in page
        assert "<style>*{" not in page
        assert '" onmouseover="' not in page


@pytest.mark.parametrize(
    ("lines", "text"), [(1, "1 unreadable line of samples.jsonl is"), (2, "2 unreadable lines of samples.jsonl are")]
)
def test_lines_that_cannot_be_read_are_counted(folder: Path, tmp_path: Path, lines: int, text: str) -> None:
    """In a sentence above the samples that can be read."""
    home = tmp_path / "home"
    shutil.copytree(folder, home)
    with Reader.open(home) as reader:
        run = reader.runs_of(reader.study("made-up").id)[0]
    samples = RunFolder.of(home, run.fingerprint, run.token).samples
    samples.write_text(_record(2, 0, "two") + "{\n" * lines + _record(4, 0, "four"))
    with TestClient(make_app(Home(home), access=Access(), keep_s=0), base_url="http://localhost") as client:
        assert f"{text} left out." in _text(client.get(f"{PAGE}?set=train").text)


def test_what_is_not_recorded_is_said_once(browser: TestClient) -> None:
    """Instead of empty columns the page names what the trainer did not record."""
    text = _text(browser.get(f"{PAGE}?set=train&step=4&problem={key_of('q'):016x}").text)
    missing = text[text.index("Not recorded") :]
    assert missing.startswith(
        "Not recorded by the trainer of this run: whether it is correct, parts of the reward, advantage, length"
    )
    assert "no spread, so the group gives no gradient" in text


def test_prompts_are_sorted_as_asked(browser: TestClient) -> None:
    """Groups without spread come first where that is asked for, and the first of the order is shown."""
    found = [_text(browser.get(f"{PAGE}?set=train&order={order}").text) for order in ("zero_variance", "spread")]
    assert found[0].index("q?") < found[0].index("2 + 3")
    assert found[1].index("2 + 3") < found[1].index("q?")


def test_group_is_compared_with_a_step_and_an_arm(
    browser: TestClient, runs: tuple[Path, tuple[RunRecord, ...]]
) -> None:
    """The difference to an earlier step is marked in the text, to another arm it is that of the same step and seed."""
    html = browser.get(f"{PAGE}?set=train&step=4&problem={KEY}&with=step-2").text
    assert "the answer is <del>2</del><ins>4</ins>" in html.replace('<i data-mark="·"> </i>', " ")
    other = runs[1][1]
    assert other.seed == runs[1][0].seed
    html = browser.get(f"{PAGE}?set=train&step=4&problem={KEY}&with=arm-{other.arm}").text
    assert "Identical to" in html
    nothing = browser.get(f"{PAGE}?set=train&step=2&problem={KEY}&with=arm-{other.arm}").text
    assert "No response to this prompt was kept at" in nothing


def test_step_without_samples_leads_to_the_one_before(browser: TestClient) -> None:
    """A step that has no samples shows the nearest before it, and says so; as it does where none is before."""
    text = _text(browser.get(f"{PAGE}?set=train&step=3").text)
    assert "step 3 has none; showing the nearest before it" in text
    assert "step 1 has none; showing the first that has" in _text(browser.get(f"{PAGE}?set=train&step=1").text)
    assert "has none" not in _text(browser.get(f"{PAGE}?set=train&step=004").text)
    for none in ("-3", "two", "9" * 20):
        text = _text(browser.get(f"{PAGE}?set=train&step={none}").text)
        assert f"{none[:12]} is not a step; showing the newest" in text
    text = _text(browser.get(f"{PAGE}?set=train&step=2&problem={key_of('q'):016x}").text)
    assert "No response to the chosen prompt was kept at step 2. The nearest are at step 4 ." in text


def test_map_counts_every_problem_of_the_evaluations(browser: TestClient) -> None:
    """The map has all evaluated problems, and the table's links lead to what is known of a problem without text."""
    html = browser.get("/study/made-up/heatmap?set=heldout").text
    assert "all 200 evaluated problems" in _text(html)
    single = browser.get("/study/made-up/heatmap?set=heldout&from=0&rows=3").text
    links = re.findall(r'<th scope="row"><a href="([^"]+)"', single)
    assert len(links) == 3
    text = _text(browser.get(unescape(links[0])).text)
    assert "1 of 1 response correct" in text
    assert "None of them was kept as text" in text


def test_map_of_kept_groups_says_how_many_it_shows(browser: TestClient) -> None:
    """Groups of training are those that were kept, and the page says of how many."""
    text = _text(browser.get("/study/made-up/heatmap?set=train").text)
    assert "the groups that samples.jsonl keeps as text, 3 groups at 2 steps, 1.5 of" in text


def test_pages_do_without_metrics_and_before_the_first_run(
    runs: tuple[Path, tuple[RunRecord, ...]], tmp_path: Path
) -> None:
    """Damaged metric lines hide no text, and a study of which no run has started has pages that say so."""
    home = tmp_path / "home"
    shutil.copytree(runs[0], home)
    run = runs[1][0]
    RunFolder.of(home, run.fingerprint, run.token).metrics.write_text("{\n")
    RunFolder.of(home, run.fingerprint, run.token).series.unlink(missing_ok=True)
    plan = made_up_study(Shape(seeds=2)).plan
    others = tuple(replace(r, fingerprint=r.fingerprint[::-1]) for r in plan.runs)
    plan = replace(plan, study="waiting", fingerprint="f" * 64, runs=others)
    with Store.open(home) as store:
        store.add_study(plan)
    with TestClient(make_app(Home(home), access=Access(), keep_s=0), base_url="http://localhost") as client:
        assert "the answer is" in client.get(f"{PAGE}?set=train&step=4&problem={KEY}").text
        for name in ("samples", "heatmap"):
            assert "No run of this study has started" in client.get(f"/study/waiting/{name}").text


ODD = ("step=x", "step=-1", "step=99999999999999999999", "problem=../x", "with=arm-", "first=9&last=1")


@pytest.mark.parametrize("query", ODD)
def test_odd_questions_get_a_page(browser: TestClient, query: str) -> None:
    """What cannot be meant is answered by a page, not by an error."""
    assert browser.get(f"{PAGE}?{query}").status_code == 200
    assert browser.get(f"/study/made-up/heatmap?{query}").status_code == 200
    assert browser.get(f"{PAGE}?run=000000&{query}").status_code == 404


def _evaluation(step: int) -> Evaluation:
    return Evaluation(
        step=step,
        set="heldout",
        samples=2,
        problems=("a", "b"),
        correct=(step % 3, 1),
        truncated=(0, 0),
        tokens=(4, 4),
        tokens_correct=(2, 2),
        answers=({"x": 2}, {"": 2}),
    )


def test_only_what_is_drawn_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many evaluations only those of the columns are read, once; a damaged one is left out, and the page says so."""
    from starlette.datastructures import QueryParams

    from paribus.recipe.recipe import Recipe
    from paribus_dashboards.heatmap.page import measured_of

    folder = RunFolder(tmp_path)
    folder.evals.mkdir()
    for step in range(200):
        folder.evaluation("heldout", step).write_text(json.dumps(asdict(_evaluation(step))))
    folder.evaluation("heldout", 199).write_text('{"step": 1}')
    asked = list[Path]()
    original = sample_index.read_evaluation
    monkeypatch.setattr(sample_index, "read_evaluation", lambda path: asked.append(path) or original(path))
    kept = SampleIndex()
    for _ in range(2):
        measured, about = measured_of(kept.run([folder], lambda _: folder), "heldout", Recipe(), QueryParams())
        assert len(measured.spans) == 79
        assert "80 of 200 evaluations" in about[1]
        assert about[2] == "1 unreadable evaluation is left out."
    assert len(asked) == 81


def test_newer_attempt_replaces_what_it_did_again(tmp_path: Path) -> None:
    """Of each step the samples of the attempt that counts there are shown, whatever the other one has of it."""
    old, new = RunFolder(tmp_path / "a1"), RunFolder(tmp_path / "a2")
    for folder, steps in ((old, (1, 2, 3)), (new, (3, 4))):
        folder.path.mkdir()
        folder.samples.write_text("".join(_record(s, 0, folder.path.name) for s in steps))
    found = SampleIndex().run([old, new], lambda step: old if step < 2 else new)
    assert found.sampled("train") == (1, 3, 4)
    groups, total = found.groups("train", 3)
    assert (total, [s.response for s in groups[0].samples]) == (1, ["a2"])
