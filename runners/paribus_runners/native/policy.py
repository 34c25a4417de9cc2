"""A causal language model with its tokenizer, from a local folder or the hub."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from paribus.errors import RunnerError, no_folder
from paribus.recipe.recipe import Lora
from paribus_runners.native import attention, chat, elementwise, experts, lora
from paribus_runners.native.head import Head
from paribus_runners.native.host_memory import HostMemory
from paribus_runners.native.limits import USUAL, Limits
from paribus_runners.native.sharded_weights import ShardedWeights
from paribus_runners.tasks import Message, Rendered

logging.disable_progress_bar()

T = TypeVar("T", bound=tuple[Any, ...])

PROMPT_WIDTH = "paribus_prompt_width"
"""Key of a model's configuration: prompts are padded on the left to this many tokens."""


def best_device() -> torch.device:
    """Return the device to train on: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Policy:
    """A model with its tokenizer, precision and device.

    Attributes:
        model: a Transformers model with the attention of :mod:`paribus_runners.native.attention`.
        tokenizer: its tokenizer.
        dtype: type of the computations; with bfloat16, autocast.
        ends: tokens that end a response.
        width: prompts are padded on the left to this many tokens; 0: no padding.
        device: where the weights are.
        head_dtype: type of the product that makes logits; ``None``: ``dtype``.
        host: keeps the weights while they are not used; ``None``: they stay on the device.
        shared: the weights as the processes of the run share them; ``None``: each holds all.
        triton: whether kernels in Triton make log-probabilities of logits, where these come in chunks.
        limits: how much is computed at once; ``None``: the usual ones of the device.
    """

    model: Any
    tokenizer: Any
    dtype: torch.dtype
    ends: tuple[int, ...]
    width: int
    device: torch.device
    head_dtype: torch.dtype | None = None
    host: HostMemory | None = None
    shared: ShardedWeights | None = None
    triton: bool = False
    limits: Limits | None = None

    @property
    def at_once(self) -> Limits:
        """How much is computed at once."""
        return self.limits or USUAL[self.device.type]

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None,
        dtype: str,
        adapters: Lora | None = None,
        seed: int = 0,
        head_dtype: str | None = None,
        trained_dtype: str = "float32",
    ) -> Policy:
        """Load a model from safetensors; code that comes with a model is never run.

        Args:
            name: a local folder, or a name on the hub.
            revision: commit on the hub; ``None``: the newest.
            dtype: type of the computations, and of the weights beside ``adapters``.
            adapters: what is trained in place of the weights; ``None``: the weights are.
            seed: seed of the run, for the initial weights of adapters.
            head_dtype: type of the product that makes logits; ``None``: that of the computations.
            trained_dtype: type of the weights without ``adapters``.

        Raises:
            RunnerError: the model cannot be loaded, or has no attention or output layer that can be replaced.
        """
        model, tokenizer = _loaded(name, revision, getattr(torch, trained_dtype if adapters is None else dtype))
        if adapters is not None:
            lora.add(model, adapters, seed)
        return cls._of(name, model, tokenizer, dtype, head_dtype or dtype)

    @classmethod
    def load_frozen(cls, name: str, revision: str | None, dtype: str, head_dtype: str) -> Policy:
        """Load a model that is not trained, with weights of ``dtype``: a reference.

        Raises:
            RunnerError: as for :meth:`load`.
        """
        model, tokenizer = _loaded(name, revision, getattr(torch, dtype), field="kl.reference.name")
        return cls._of(name, model.requires_grad_(False), tokenizer, dtype, head_dtype)

    @classmethod
    def _of(cls, name: str, model: Any, tokenizer: Any, dtype: str, head_dtype: str) -> Policy:
        model = model.to(best_device()).eval()
        elementwise.lean(model)
        ends = chat.ends_of(model.generation_config.eos_token_id, tokenizer)
        if not ends:
            raise RunnerError(chat.no_end(name))
        width = getattr(model.config, PROMPT_WIDTH, 0)
        policy = cls(model, tokenizer, getattr(torch, dtype), ends, width, best_device(), getattr(torch, head_dtype))
        policy.check_head()
        return policy

    def weights_hash(self) -> str:
        """Return the SHA-256 of all weights, in float32, with their names: 64 hexadecimal digits; not of adapters."""
        digest = hashlib.sha256()
        for name, weights in lora.of_the_model(self.model):
            digest.update(f"{name}{tuple(weights.shape)}".encode())
            digest.update(weights.detach().float().cpu().reshape(-1).numpy().data)
        return digest.hexdigest()

    def frozen(self) -> Policy:
        """Return a policy that stays as this one is now; it shares the weights that are not trained."""
        return replace(self, model=lora.copy_of(self.model, self.model).requires_grad_(False))

    def at_hand(self) -> AbstractContextManager[None]:
        """Have the weights on the device for the duration."""
        return contextlib.nullcontext() if self.host is None else self.host.at_hand()

    def one_pass(self, action: Callable[[], T]) -> T:
        """Return the tensors that ``action`` does, which makes one pass, with all weights that it needs."""
        return action() if self.shared is None else self.shared.run(action)

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that an optimizer changes."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def render(self, messages: Sequence[Message]) -> str:
        """Return messages as text by the chat template of the tokenizer; see :func:`chat.render`."""
        return chat.render(self.tokenizer, messages)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each prompt; one that a chat template wrote gets no further special tokens.

        Raises:
            RunnerError: a prompt becomes no token.
        """
        blank = self.tokenizer.pad_token_id
        tokens: list[list[int]] = [[]] * len(prompts)
        for done in (False, True):
            places = [i for i, prompt in enumerate(prompts) if isinstance(prompt, Rendered) == done]
            if places:
                texts = [str(prompts[i]) for i in places]
                for i, ids in zip(places, self.tokenizer(texts, add_special_tokens=not done).input_ids, strict=True):
                    if not ids:
                        raise RunnerError(chat.no_token(prompts[i]))
                    tokens[i] = ids
        return [[blank] * (self.width - len(ids)) + ids for ids in tokens]

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of a text that stands inside a response: special tokens that it names, and no others."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def characters(self, tokens: Sequence[int]) -> int:
        """Return how many characters the text of some tokens has, end marks included."""
        return len(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each response, without its end mark."""
        bare = [ids[:-1] if ids and ids[-1] in self.ends else ids for ids in responses]
        texts: list[str] = self.tokenizer.batch_decode(bare, clean_up_tokenization_spaces=False)
        return texts

    def decode_prompts(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each prompt without padding, with its special tokens."""
        blank = self.tokenizer.pad_token_id if self.width else None
        bare = [list(dropwhile(lambda token: token == blank, ids)) for ids in prompts]
        texts: list[str] = self.tokenizer.batch_decode(bare, clean_up_tokenization_spaces=False)
        return texts

    @property
    def experts_per_token(self) -> int | None:
        """Experts that a token goes to in each layer; None for a dense model."""
        return getattr(self.model.config, "num_experts_per_tok", None)

    @property
    def head(self) -> Head:
        """The output layer, which turns hidden states into logits."""
        return Head.of(self.model, self.head_dtype or self.dtype, triton=self.triton)

    def hidden(self, ids: Tensor, positions: Tensor, layout: attention.Layout, at: Tensor | None = None) -> Tensor:
        """Return the final hidden states [n, H] at the places ``at`` of a row of tokens [T], by default at all."""
        return self._states(self._forward(ids, positions, layout), at)

    def hidden_and_router(
        self, ids: Tensor, positions: Tensor, layout: attention.Layout, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states, and the log-probabilities of the routers at the same places [n, layers, experts].

        The latter are float32, in nats, and carry no gradient.

        Raises:
            RunnerError: the model has no routers, or routers of an unknown kind.
        """
        kind = self.model.config.model_type
        if kind not in experts.MIXTURES:
            raise RunnerError(
                f"a model of type {kind} has no router whose probabilities can be read: set `model.name: tiny_moe`, or "
                f"name a mixture-of-experts model of type {', '.join(sorted(experts.MIXTURES))}"
            )
        out = self._forward(ids, positions, layout, output_router_logits=True)
        router = torch.stack([x.detach()[at] for x in out.router_logits], 1)
        return self._states(out, at), router.float().log_softmax(-1)

    def _forward(self, ids: Tensor, positions: Tensor, layout: attention.Layout, **more: Any) -> Any:
        if layout.choice is not None:
            experts.direct(self.model)
        with self._precision():
            return self.model.base_model(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout, **more
            )

    @contextlib.contextmanager
    def weights_cast_once(self) -> Iterator[None]:
        """Cast weights to the type of the computations once for all passes inside, and not in each of them.

        For passes without gradient: sampling makes one for each token, and would mostly cast.
        """
        with self._precision(), torch.autocast(self.device.type, enabled=False):
            yield

    def _precision(self) -> AbstractContextManager[Any]:
        full = self.dtype == torch.float32
        return contextlib.nullcontext() if full else torch.autocast(self.device.type, self.dtype)

    @staticmethod
    def _states(out: Any, at: Tensor | None) -> Tensor:
        states: Tensor = out.last_hidden_state
        return (states if at is None else states[:, at, :])[0]

    @torch.no_grad()
    def check_head(self) -> None:
        """Compare the logits that :attr:`head` makes of hidden states with the model's own.

        Raises:
            RunnerError: they differ: the model does something else between its hidden states and its logits.
        """
        ids = torch.arange(1, 5, device=self.device) % len(self.head.weight)
        layout = attention.pack([len(ids)], [()], self.device)
        with self._precision():
            out = self.model(input_ids=ids[None], position_ids=layout.positions[None], use_cache=False, layout=layout)
        plain = Head.of(self.model, self.dtype)  # the model's own logits know no other type
        own, ours = out.logits[0].float(), plain.logits(self.hidden(ids, layout.positions, layout))
        if not torch.allclose(own, ours, rtol=1e-4, atol=1e-4 * float(own.abs().max())):
            name = type(self.model).__name__
            raise RunnerError(f"{name} changes its logits after the output layer: it cannot be trained here")


def _loaded(name: str, revision: str | None, dtype: torch.dtype, field: str = "model.name") -> tuple[Any, Any]:
    """Return a model with weights of ``dtype``, and its tokenizer.

    Raises:
        RunnerError: it cannot be loaded.
    """
    path = Path(name).expanduser()
    source = str(path) if path.is_dir() else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or "main")
        model, read = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision or "main",
            dtype=dtype,
            attn_implementation=attention.NAME,
            use_safetensors=True,  # other formats are unpickled
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        meant = "" if path.is_dir() else no_folder(path)
        reason = f" from the hub{meant} {error}" if meant else f": {error}"
        raise RunnerError(f"`{field}: {name}` cannot be loaded{reason}") from error
    if missing := sorted(read["missing_keys"]):  # Transformers draws them
        others = sorted(read["unexpected_keys"])
        instead = f" The files have others, such as `{others[0]}`." if others else ""
        raise RunnerError(
            f"`{field}: {name}` lacks {len(missing)} of its weights, such as `{missing[0]}`: they would be random. "
            f"Save the whole model with `save_pretrained`.{instead}"
        )
    return model, tokenizer
