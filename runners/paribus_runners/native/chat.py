"""Chats as text: the chat template of a tokenizer applied, and what can be wrong with it. Needs no torch.

Templates are programs that come with a model. Transformers runs them in Jinja's sandbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paribus.errors import RunnerError
from paribus.run_folder.json_text import shown
from paribus_runners.tasks import Message


def render(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Return messages as text, with the special tokens of the template, up to where the answer begins.

    Raises:
        RunnerError: there is no template, or it raises an error, or it leaves the system prompt or the prompt out.
    """
    if not tokenizer.chat_template:
        raise RunnerError(
            "the model's tokenizer has no chat template: write `task.template: none`, or put a file "
            "`chat_template.jinja` into a local copy of the model"
        )
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    try:
        text = _applied(tokenizer, messages)
    except Exception as error:  # what a template raises is up to its author
        if system and len(messages) > 1 and _works(tokenizer, messages[1:]):
            raise RunnerError(
                f"the model's chat template takes no system message ({_short(error)}): leave out `task.system`, and "
                "write its text into the prompts"
            ) from error
        raise RunnerError(
            f"the model's chat template raises an error: {_short(error)}. Mend the template, or write "
            "`task.template: none`"
        ) from error
    if system.strip() not in text:
        raise RunnerError(
            "the model's chat template leaves the system message out: leave out `task.system`, and write its text into "
            "the prompts"
        )
    if messages[-1]["content"].strip() not in text:
        raise RunnerError("the model's chat template leaves the prompt out: mend it, or write `task.template: none`")
    return text


def ends_of(generation: int | Sequence[int] | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end a response: those of the generation configuration, else the tokenizer's; or none."""
    ends = tokenizer.eos_token_id if generation is None else generation
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends)


def no_end(name: str) -> str:
    """Return what is wrong with a model that has no token to end a response, and the remedy."""
    return (
        f"`model.name: {name}` names no end-of-sequence token: responses could not end. Set `eos_token_id` in its "
        "generation_config.json, or `eos_token` of its tokenizer"
    )


def no_token(prompt: str) -> str:
    """Return what is wrong with a prompt that becomes no token, and the remedy."""
    return (
        f"the prompt {shown(prompt)} becomes no token, and there is nothing to continue: the model's tokenizer knows "
        "none of its characters. Leave this prompt out, or choose a model whose tokenizer knows them"
    )


def turn_end(tokenizer: Any) -> int | None:
    """Return the special token that the chat template puts behind an answer; ``None`` if it puts none."""
    mark = "answer"
    try:
        chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": mark}]
        text: str = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:  # `render` says so, of the prompts of the study
        return None
    tail = text.rpartition(mark)[2].strip()
    ids: Sequence[int] = tokenizer(tail, add_special_tokens=False).input_ids if mark in text and tail else ()
    return ids[0] if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def _applied(tokenizer: Any, messages: Sequence[Message]) -> str:
    plain = [dict(message) for message in messages]
    text: str = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    return text


def _works(tokenizer: Any, messages: Sequence[Message]) -> bool:
    try:
        _applied(tokenizer, messages)
    except Exception:
        return False
    return True


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
