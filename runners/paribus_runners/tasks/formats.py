r"""Published formats of problem sets: which columns they have, and how the answer stands in its column.

Sources, of each the dataset's card on the Hugging Face hub:

* ``gsm8k``: ``openai/gsm8k`` (arXiv 2110.14168): ``question``; ``answer`` is a worked solution whose last line is
  ``#### 72``.
* ``math``: ``hendrycks/competition_math`` (arXiv 2103.03874) and its copies: ``problem``; ``solution`` holds the answer
  in ``\boxed``, in a few rows without braces or in ``\fbox``.
* ``dapo_math``: ``BytedTsinghua-SIA/DAPO-Math-17k`` (arXiv 2503.14476), in the columns of verl: ``prompt`` is a list of
  messages which asks for a last line ``Answer: ...``; ``reward_model`` is a mapping with the text ``ground_truth``.
* ``aime``: ``Maxwell-Jia/AIME_2024``: ``Problem``; ``Answer`` is a whole number. ``HuggingFaceH4/aime_2024`` has the
  same in ``problem`` and ``answer``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paribus.recipe.recipe import DatasetTask, Source, Verifier
from paribus_runners.rewards.verifiers import boxed

_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{([^{}]*)\}|([^\s{}$.]+))")


def whole(text: str) -> str:
    """Return the whole text without surrounding white space."""
    return text.strip()


def after_marks(text: str) -> str:
    """Return what follows the last ``####`` (GSM8K); empty without it."""
    return text.rpartition("####")[2].strip() if "####" in text else ""


def in_box(text: str) -> str:
    r"""Return the content of the last ``\boxed`` or ``\fbox`` (MATH); empty without one."""
    if found := boxed(text):
        return found
    bare = _BARE_BOX.findall(text)
    return "".join(bare[-1]).strip() if bare else ""


@dataclass(frozen=True, kw_only=True)
class Format:
    """Columns of a problem set and its answers.

    Attributes:
        prompt: column of the prompt.
        answer: column of the answer; a point leads into a mapping.
        extract: takes the answer out of its column; empty if there is none.
        looks_like: how an answer is marked in its column, for messages.
        verifier: how the answer is extracted from a response by default.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    extract: Callable[[str], str] = whole
    looks_like: str = "an answer"
    verifier: Verifier = "last_number"


PLAIN = Format()
"""What holds where no format is named."""

FORMATS: Mapping[str, Format] = {
    "gsm8k": Format(prompt="question", extract=after_marks, looks_like="`#### 72`"),
    "math": Format(prompt="problem", answer="solution", extract=in_box, looks_like="`\\boxed{72}`", verifier="boxed"),
    "dapo_math": Format(answer="reward_model.ground_truth"),
    "aime": Format(prompt="Problem", answer="Answer"),
}
"""The formats of :data:`paribus.recipe.recipe.Format`."""


def format_of(task: DatasetTask, source: Source) -> Format:
    """Return the columns of a source and how answers stand in them: its own first, then the task's."""
    named = source.format or task.format
    base = PLAIN if named is None else FORMATS[named]
    # a source with a format of its own has that format's columns, whatever the task names for the other one
    shared = source.format is None
    prompt = source.prompt or (task.prompt if shared else None) or base.prompt
    answer = source.answer or (task.answer if shared else None) or base.answer
    return Format(
        prompt=prompt, answer=answer, extract=base.extract, looks_like=base.looks_like, verifier=base.verifier
    )


def verifier_of(task: DatasetTask) -> Verifier:
    """Return how the answer is extracted from responses: as the task says, else by the format of the training data."""
    return task.verifier or format_of(task, task.train).verifier
