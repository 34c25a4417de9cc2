"""verl's own configuration under our overrides, resolved and validated by its own code."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, PreTrainedTokenizerFast
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from paribus_runners.capabilities import Capabilities, matrix_for
from paribus_runners.verl.options import VerlOptions, arguments

CONFIG = Path(verl.__file__).parent / "trainer" / "config"


def capabilities() -> Capabilities:
    """Return what the file says of the installed version."""
    return matrix_for("verl", "0.9.1").capabilities


@cache
def model() -> str:
    """Return a folder with a tiny model: verl's check of a critic reads its configuration and tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    words = {"<end>": 0, "<unk>": 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=2)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    atexit.register(shutil.rmtree, folder)
    return str(folder)


def composed(arguments: Sequence[str]) -> DictConfig:
    """Return `ppo_trainer.yaml` under overrides, as `python -m verl.trainer.main_ppo` composes it; seconds each."""
    return deepcopy(_composed(tuple(arguments)))


@cache
def _composed(arguments: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("ppo_trainer", list(arguments))


def arguments_of(recipe: Any, passed: Mapping[str, Any] | None = None, own: VerlOptions | None = None) -> list[str]:
    """Return the overrides of a run of a recipe on one GPU, but for its files and folders."""
    places = dict.fromkeys(("actor_rollout_ref.model.path", "critic.model.path"), model())
    return arguments(capabilities(), recipe, passed or {}, own or VerlOptions(), seed=7, gpus=1, more=places)


def resolved(recipe: Any, passed: Mapping[str, Any] | None = None, own: VerlOptions | None = None) -> DictConfig:
    """Return the resolved configuration, which verl's `validate_config` has accepted; not to be changed."""
    return _resolved(tuple(arguments_of(recipe, passed, own)))


@cache
def _resolved(arguments: tuple[str, ...]) -> DictConfig:
    config = composed(arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Disabled critic as")
        validate_config(config, need_reference_policy(config), need_critic(config))
    OmegaConf.resolve(config)
    return config


def flat(config: DictConfig) -> dict[str, Any]:
    """Return all values of a configuration by dotted name; lists are values, and so is `???`, which is missing."""
    return _flat(OmegaConf.to_container(config), "")


def _flat(config: Any, above: str) -> dict[str, Any]:
    if not isinstance(config, Mapping) or not config:
        return {above.rstrip("."): config}
    return {k: v for name, value in config.items() for k, v in _flat(value, f"{above}{name}.").items()}
