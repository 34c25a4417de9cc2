"""Whether a response has one turn of the model, or several with answers of an environment between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from paribus.recipe.factors.level import Count, Level, Positive
from paribus.recipe.factors.reward import dotted


class SingleTurn(Level):
    """The model alone writes a response, up to its end mark."""

    kind: Literal["single"] = "single"


class FunctionTurns(Level):
    """A Python function answers turns of the model: a tool, a hint, a second attempt.

    Its tokens stand in the response and are read, but they carry no loss: ratios, clips, KL, entropy, every aggregation
    and every length (overlong punishment, `length.keep`, truncation, `schedule.max_new_tokens`) know the tokens alone
    that the model wrote.
    """

    kind: Literal["function"] = "function"
    path: str = Field(
        description="module and function, e.g. `my_tools.calculator` of my_tools.py beside the study file; a module "
        "that is not there is imported as any installed one"
    )
    marks: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description='texts that end a turn beside the end mark, each one token of the model, e.g. `["?"]`'
    )
    most: Count = Field(default=4, description="answers that a response may get; after them no turn is answered")
    answer_tokens: Count = Field(
        default=64, description="tokens that an answer may have; a longer one counts as a failure"
    )
    turn_tokens: Count | None = Field(
        default=None,
        description="tokens that the model may write in a turn; absent: what is left of schedule.max_new_tokens",
    )
    timeout_s: Positive = Field(default=10.0, description="seconds after which a call is ended")
    memory_gib: Positive = Field(default=4.0, description="address space of each of its processes")

    @field_validator("path")
    @classmethod
    def _dotted(cls, path: str) -> str:
        return dotted(path, "my_tools.calculator")

    @property
    def room(self) -> int:
        """Tokens that all answers of a response may have together."""
        return self.most * self.answer_tokens


Turns = Annotated[SingleTurn | FunctionTurns, Field(discriminator="kind")]
