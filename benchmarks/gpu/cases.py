"""What the scripts measure, as data: the page has a row for each case, measured or not. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


def shown(size: str) -> str:
    """Return how a size is written: ``0.5B`` for ``0.5b``."""
    return size.replace("b", "B")


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update of a model.

    Attributes:
        size: file of the configuration.
        tokens: tokens of the batch at most.
        room: longest response; ``prompt``: tokens of each prompt; ``copies``: responses to each.
        again: blocks are computed again in the backward pass, not kept.
        lora: adapters are trained, and the weights are bfloat16.
        half: all weights are trained in bfloat16; their float32 copies and moments are in host memory.
        triton: kernels in Triton make log-probabilities of logits.
    """

    size: str
    tokens: int
    room: int = 1008
    prompt: int = 128
    copies: int = 8
    again: bool = False
    lora: bool = False
    half: bool = False
    triton: bool = False

    @property
    def name(self) -> str:
        """The row's name."""
        how = ", adapters" if self.lora else ", bfloat16 weights, optimizer in host memory" if self.half else ""
        what = f"{shown(self.size)}{how}, {self.tokens:,} tokens"
        what += ", blocks computed again" if self.again else ""
        return f"{what}, head by Triton" if self.triton else what

    @property
    def prompts(self) -> int:
        """Prompts whose groups fit, if all responses reach the limit."""
        return max(1, self.tokens // (self.prompt + self.copies * self.room))


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Responses that are sampled together: ``rows`` of them, ``copies`` a prompt, ``mean`` tokens each on average."""

    size: str
    rows: int
    copies: int = 8
    prompt: int = 128
    room: int = 768
    mean: int = 200
    peer: bool = False
    """Whether Transformers samples the same number, too."""

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{shown(self.size)}, {self.rows} responses"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Whole steps of training, by the native runner and by TRL.

    Attributes:
        size: file of the configuration.
        prompts: prompts of a step; ``copies``: responses to each; ``updates``: optimizer batches of a step.
        room: longest response; ``mean``: mean length of one that ends by itself.
        steps: steps; the first is a warm-up.
        again: blocks are computed again in the backward pass, not kept.
        parts: passes of TRL in an optimizer batch; the native runner splits by its own limit of tokens.
        vllm: vLLM samples, with a copy of the weights that follows each update.
    """

    size: str
    prompts: int = 32
    copies: int = 8
    updates: int = 4
    room: int = 512
    mean: int = 150
    steps: int = 5
    again: bool = False
    parts: int = 1
    vllm: bool = False

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{shown(self.size)}, {self.prompts} x {self.copies} responses{' by vLLM' if self.vllm else ''}"


EQUAL = (
    "log-probabilities, float32",
    "log-probabilities, bfloat16",
    "gradient, float32",
    "gradient, bfloat16",
    "gradient in several passes, float32",
    "gradient in several passes, bfloat16",
    "sampler and learner, float32",
    "sampler and learner, bfloat16",
    "log-probabilities, head by Triton, float32",
    "log-probabilities, head by Triton, bfloat16",
    "gradient, head by Triton, float32",
    "gradient, head by Triton, bfloat16",
)
UPDATES = (
    Update(size="1.5b", tokens=32_768, again=True),
    Update(size="0.5b", tokens=32_768, again=True),
    Update(size="0.5b", tokens=32_768, again=True, triton=True),
    Update(size="7b", tokens=32_768, again=True, lora=True),
    Update(size="7b", tokens=8_192, again=True, half=True),
    Update(size="1.5b", tokens=8_192),
    Update(size="0.5b", tokens=16_384),
    Update(size="7b", tokens=8_192, lora=True),
    Update(size="0.5b", tokens=32_768),
    Update(size="1.5b", tokens=32_768),
)
"""The most telling first: the last ones may find no time left, or no memory."""
ROLLOUTS = (
    Rollout(size="0.5b", rows=256, peer=True),
    Rollout(size="1.5b", rows=256, peer=True),
    Rollout(size="0.5b", rows=64),
    Rollout(size="0.5b", rows=512),
    Rollout(size="0.5b", rows=1024),
    Rollout(size="1.5b", rows=64),
    Rollout(size="1.5b", rows=512),
)
STEPS = (Steps(size="0.5b"), Steps(size="1.5b", again=True), Steps(size="1.5b", again=True, vllm=True))
"""The first is also killed and resumed."""
TRL = (
    Steps(size="0.5b", steps=4, parts=2, again=True),
    Steps(size="1.5b", steps=3, prompts=16, parts=2, again=True),
)

TINY_UPDATES = (
    Update(size="tiny", tokens=408, room=24, prompt=12),
    Update(size="tiny", tokens=408, room=24, prompt=12, again=True),
    Update(size="tiny", tokens=204, room=24, prompt=12, lora=True),
    Update(size="tiny", tokens=204, room=24, prompt=12, half=True),
    Update(size="tiny", tokens=204, room=24, prompt=12, triton=True),
)
TINY_ROLLOUTS = (Rollout(size="tiny", rows=32, prompt=12, room=48, mean=16, peer=True),)
TINY_STEPS = (
    Steps(size="tiny", prompts=4, copies=4, updates=2, room=24, mean=8, steps=3),
    Steps(size="tiny", prompts=4, copies=4, updates=2, room=24, mean=8, steps=3, vllm=True),
)
TINY_TRL = (Steps(size="tiny", prompts=4, copies=4, updates=2, room=24, mean=8, steps=3, parts=2),)
