"""verl's own configuration under our overrides, resolved and validated by its own code."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from paribus_runners.capabilities import Capabilities, matrix_for
from paribus_runners.verl.options import VerlOptions, options_of, seeds
from paribus_runners.verl.overrides import overrides

CONFIG = Path(verl.__file__).parent / "trainer" / "config"


def capabilities() -> Capabilities:
    """Return what the file says of the installed version."""
    return matrix_for("verl", "0.9.1").capabilities


def composed(arguments: Sequence[str]) -> DictConfig:
    """Return `ppo_trainer.yaml` under overrides, as `python -m verl.trainer.main_ppo` composes it."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("ppo_trainer", list(arguments))


def arguments_of(recipe: Any, passed: Mapping[str, Any] | None = None, own: VerlOptions | None = None) -> list[str]:
    """Return the overrides of a run of a recipe on one GPU, but for its files and folders."""
    found = capabilities()
    options = options_of(found, recipe, passed or {}, own or VerlOptions())
    return overrides({**options, **seeds(found, 7), "trainer.n_gpus_per_node": 1}, found.options.added)


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
