"""verl resolves and accepts every supported level of every factor, and what comes out is what the recipe says."""

import re

import pytest
from hydra.errors import ConfigCompositionException
from verl.utils.config import omega_conf_to_dataclass

from conformance import ours
from conformance.batches import BATCHES
from conformance.outcome import error
from conformance.row import TOLERANCE, Row
from conformance.rows_verl import AGREE
from conformance.verl_side import outcome
from paribus.contract import Options
from paribus.recipe.recipe import FACTORS
from paribus_runners.verl import runner
from paribus_runners.verl.options import VerlOptions, options_of
from paribus_runners.verl.overrides import overrides
from with_verl.recipes import levels, of_level, recipe
from with_verl.resolved import arguments_of, capabilities, composed, flat, resolved

LEVELS = list(levels())
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg.len"
NO_ARGUMENTS = ("algorithm.rollout_correction.bypass_mode", "algorithm.rollout_correction.loss_type")
"""What the trainer reads itself."""


@pytest.fixture(scope="module")
def plain():
    """Compose verl's own configuration, without an override."""
    return flat(composed([]))


def test_every_factor_has_a_supported_level():
    """The list of cases is not empty by mistake; `auxiliary` has values, which rows below have."""
    factors = {place.partition(".")[0] for place, _ in LEVELS}
    assert set(FACTORS) - factors == {"auxiliary"}
    assert len(LEVELS) > 35


@pytest.mark.parametrize(("place", "level"), LEVELS, ids=[f"{p}-{n}" for p, n in LEVELS])
def test_verl_resolves_and_accepts_a_level(place, level):
    """Each override reaches the configuration with its value and type, and `validate_config` accepts the whole."""
    asked = options_of(capabilities(), of_level(place, level), {}, VerlOptions())
    found = flat(resolved(of_level(place, level)))
    for name, value in asked.items():
        if isinstance(value, dict):
            assert {k.removeprefix(f"{name}."): v for k, v in found.items() if k.startswith(f"{name}.")} == value
        else:
            assert found[name] == value, name
            assert isinstance(found[name], bool) == isinstance(value, bool), name


def test_seeds_reach_every_place(plain):
    """No key of verl with a seed is left at its default, but those of a reward model."""
    known = {k for k in plain if re.search(r"(^|[._])seed$", k)}
    assert known - set(capabilities().options.seeds) == {"reward.reward_model.rollout.seed"}
    found = flat(resolved(recipe()))
    assert {found[name] for name in capabilities().options.seeds} == {7}


def test_every_name_in_the_file_is_verls(plain):
    """Options that are free, owned or set exist in verl's configuration; those that are added do not."""
    options = capabilities()
    with_values = {k for name in plain for k in (name, name.rpartition(".")[0])}
    assert {n for n in options.names if n not in with_values} == set(options.options.added)
    assert not set(options.options.added) & plain.keys()


@pytest.mark.parametrize("key", ["actor_rollout_ref.actor.clip_ratio_hihg", "algorithm.norm_adv_by_std"])
def test_a_misspelt_key_is_refused(key):
    """By verl's own composition, since `++` is never written; and by a plan, with what was meant."""
    with pytest.raises(ConfigCompositionException, match=key.rpartition(".")[2]):
        composed(overrides({key: 0.3}, capabilities().options.added))
    (problem,) = runner.check_options(Options(passthrough={key: 0.3}))
    assert "Did you mean" in problem.message
    assert not any(argument.startswith("++") for argument in arguments_of(recipe()))


@pytest.mark.parametrize(
    "text",
    ["a b", "a'b", 'a"b', "a\\", 'a\\"b', "a=b,c", "{a: 1}", "[1]", "null", "True", "1e5", "$x", "", "ä#", "a:b"],
)
def test_any_text_reaches_verl_as_it_is(text):
    """Hydra's grammar reads back what was written: no text becomes a list, a number, or another override."""
    assert composed(overrides({"actor_rollout_ref.model.path": text}, ())).actor_rollout_ref.model.path == text


@pytest.mark.parametrize(("deterministic", "v1"), [(False, True), (True, False)])
def test_the_trainer_follows_from_the_feature(deterministic, v1):
    """Determinism takes the older trainer and deterministic sampling; everything else the newer one."""
    config = resolved(recipe(), own=VerlOptions(deterministic=deterministic))
    assert config.trainer.use_v1 is v1
    assert config.actor_rollout_ref.rollout.full_determinism is deterministic
    assert config.actor_rollout_ref.actor.fsdp_config.full_determinism is deterministic
    assert config.actor_rollout_ref.actor.calculate_entropy is True
    assert config.actor_rollout_ref.rollout.calculate_log_probs is True


def supported(row: Row) -> bool:
    """Return whether the runner trains what a row compares; the shape of its batches is not looked at."""
    if (
        row.critic
        or row.options.get("micro_batches")
        or row.options.get("algorithm.adv_estimator") == "rloo_vectorized"
    ):
        return False
    found = runner.support(row.recipe(BATCHES[row.batches[0]]), Options())
    return not any(s.level == "unsupported" for s in found if s.feature not in ("model.name", "rollout.engine"))


ROWS = [row for row in AGREE if supported(row)]


def test_most_rows_are_of_supported_recipes():
    """What is left out below is what the file refuses."""
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_resolved_configuration_trains_the_loss_of_the_recipe(row):
    """From recipe to overrides to verl's configuration to verl's loss: it is ours, as in the table of conformance."""
    batch = BATCHES[row.batches[0]]
    wanted = row.recipe(batch)
    config = resolved(wanted)
    options = {k: v for k, v in flat(config).items() if k.startswith(("algorithm.", BUFFER)) and k not in NO_ARGUMENTS}
    found = outcome(options, batch, wanted.reward.map, omega_conf_to_dataclass(config.actor_rollout_ref.actor))
    mine = ours.outcome(wanted, batch)
    assert max(error(mine, found, part) for part in row.parts) <= TOLERANCE
