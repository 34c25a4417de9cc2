"""The memory of each phase that a plan computes: its constants are the code's, and a measurement agrees."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.evaluate import Evaluate, EvaluationSet
from paribus.recipe.compute import Compute
from paribus.recipe.factors import (
    Auxiliary,
    CriticGae,
    FixedReference,
    KlInLoss,
    ModelReference,
    NoScale,
    PairDpo,
    Schedule,
    SyncedReference,
    ValueLoss,
)
from paribus.recipe.recipe import Lora, Model, Recipe
from paribus.recipe.rollout import Rollout
from paribus_runners.native import head, memory
from paribus_runners.native.held import Held
from paribus_runners.native.limits import USUAL, Limits, usable
from paribus_runners.native.memory import Architecture, Phases
from paribus_runners.native.model_files import ModelFiles
from paribus_runners.native.rollout import decoder

QWEN_7B = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
NUMBERS_7B = 7_615_616_512
BILLION = 10**9
BATCH = Schedule(steps=1, prompts_per_step=64, group_size=8, minibatches=4, max_new_tokens=1024)


def phases(recipe=None, device="cuda", **changes):
    """Return the arithmetic for a model of 7 billion parameters."""
    model = Architecture.of(QWEN_7B)
    held = Held(weights=NUMBERS_7B, trained=NUMBERS_7B)
    return Phases(model=model, held=held, recipe=recipe or Recipe(schedule=BATCH), prompt=256, device=device, **changes)


def test_the_limits_are_those_of_the_code_that_trains():
    """Logits at one time, and kinds of models that are decoded, are written twice, as a plan needs no torch."""
    assert memory.DECODED == decoder.KINDS
    assert (memory.CHUNK, memory.SMALL) == (head.CHUNK, head.SMALL)


def test_what_is_held_follows_from_the_recipe():
    """16 bytes a parameter that is trained; a reference 4 and a critic 16 more; adapters leave the rest as it is."""
    whole = Held(weights=100, trained=100)
    assert whole.bytes(Recipe()) == 1600
    assert whole.bytes(Recipe(), gradients="none") == 1200
    assert Held(weights=1000, trained=10, frozen=2).bytes(Recipe()) == 2160
    assert whole.bytes(Recipe(kl=KlInLoss(beta=0.1))) == 1600 + 400
    critic = Recipe(baseline=CriticGae(), scale=NoScale(), auxiliary=Auxiliary(value=ValueLoss()))
    assert whole.bytes(critic) == 1600 + 1600
    assert whole.bytes(critic, gradients="critic") == 1200 + 1600
    assert whole.bytes(critic, gradients="none") == 1200 + 1200


def test_what_is_shared_or_in_host_memory_leaves_the_device():
    """Eight processes share 8 bytes of moments, or 12 with masters; what is offloaded is not there at all."""
    shared, half = Compute(sharding="optimizer"), Model(dtype="bfloat16", trained_dtype="bfloat16")
    eight = Held(weights=800, trained=800, processes=8)
    assert eight.bytes(Recipe(compute=shared)) == 800 * (4 + 4 + 1)
    assert eight.bytes(Recipe(model=half, compute=shared)) == 800 * (2 + 4) + 1200
    assert eight.bytes(Recipe(model=half)) == 800 * 18
    reference = KlInLoss(beta=0.1)
    away = Recipe(model=half, compute=Compute(offload=("optimizer", "reference")), kl=reference)
    assert eight.bytes(away) == 800 * 6
    assert eight.reference(away) == 1600
    assert eight.reference(Recipe(kl=reference)) == 0
    critic = Recipe(baseline=CriticGae(), scale=NoScale(), auxiliary=Auxiliary(value=ValueLoss()), compute=shared)
    assert eight.bytes(critic) == 2 * 800 * 9


def test_sharded_weights_leave_a_share_of_all_in_updates():
    """Share, moments and gradients: 16 bytes over the processes; elsewhere whole weights, and no gradients."""
    sharded, half = Compute(sharding="weights"), Model(dtype="bfloat16", trained_dtype="bfloat16")
    eight = Held(weights=800, trained=800, processes=8)
    for model, width in ((Model(), 4), (half, 2)):
        recipe = Recipe(model=model, compute=sharded)
        assert eight.bytes(recipe, whole=False) == 1600
        assert eight.bytes(recipe, gradients="none") == 800 * width + 1200
        away = Recipe(model=model, compute=Compute(sharding="weights", offload=("optimizer",)))
        assert eight.bytes(away, whole=False) == 800
    parts = Held(weights=800, trained=400, inside=True, processes=8)
    assert parts.bytes(Recipe(compute=sharded), whole=False) == 400 * 16 / 8 + 400 * 4 / 8
    alone = Held(weights=800, trained=800)
    assert alone.bytes(Recipe(compute=sharded)) == alone.bytes(Recipe())
    compared = Recipe(compute=sharded, kl=KlInLoss(beta=0.1))  # its frozen weights are its own
    assert parts.bytes(compared) - parts.bytes(Recipe(compute=sharded)) == 800 * 4
    assert parts.bytes(Recipe(kl=KlInLoss(beta=0.1))) - parts.bytes(Recipe()) == 400 * 4


def test_who_samples_holds_no_optimizer_and_who_trains_no_reference():
    """A sampler has weights, and a reference; six of eight processes share the optimizer, and keep one that moves."""
    half = Model(dtype="bfloat16", trained_dtype="bfloat16")
    apart = Compute(sharding="optimizer", sampling_processes=2)
    six = Held(weights=600, trained=600, processes=6)
    plain = Recipe(model=half, compute=apart)
    fixed, moving = (
        Recipe(model=half, compute=apart, kl=KlInLoss(beta=0.1, reference=each))
        for each in (FixedReference(), SyncedReference())
    )
    assert six.bytes(plain) == six.bytes(fixed) == 600 * (2 + 4 + 12 / 6)
    assert six.bytes(moving) - six.bytes(fixed) == 600 * 2
    assert six.bytes_to_sample(plain) == 600 * 2
    assert six.bytes_to_sample(fixed) == 600 * 4
    parts = Held(weights=1000, trained=600, inside=True, processes=2)
    for sharding in ("none", "weights"):  # it shards nothing
        compute = Compute(sharding=sharding, sampling_processes=1)
        assert parts.bytes_to_sample(Recipe(compute=compute, kl=KlInLoss(beta=0.1))) == 1000 * 4 + 600 * 4
    held = Held(weights=NUMBERS_7B, trained=NUMBERS_7B, processes=6)
    peaks = [
        Phases(model=Architecture.of(QWEN_7B), held=held, recipe=each, prompt=256, device="cuda").peaks(Evaluate())
        for each in (
            Recipe(model=half, compute=Compute(sharding="optimizer", sampling_processes=6)),
            Recipe(model=half, compute=Compute(sharding="optimizer")),
        )
    ]
    assert peaks[0].update == peaks[1].update
    assert peaks[1].rollout - peaks[0].rollout == pytest.approx(12 / 6 * NUMBERS_7B)


def test_kernels_hold_logits_once_in_the_type_of_the_products():
    """Of a chunk 64 MiB in bfloat16, 128 in float32; operations of torch hold 320 and 256."""

    def pieces(kind, **model):
        recipe = Recipe(schedule=BATCH, model=Model(**model), compute=Compute(head=kind))
        return phases(recipe)._pieces(32_768, kept=4)

    chunk = head.CHUNK // 152_064 * 152_064
    assert pieces("triton", dtype="bfloat16") == 2 * chunk
    assert pieces("torch", dtype="bfloat16") == 10 * chunk
    assert pieces("triton") == pieces("triton", dtype="bfloat16", logits_dtype="float32") == 4 * chunk
    assert pieces("torch") == 8 * chunk
    peaks = {}
    for kind in ("torch", "triton"):
        recipe = Recipe(schedule=BATCH, auxiliary=Auxiliary(entropy=0.01), compute=Compute(head=kind))
        peaks[kind] = phases(recipe).peaks(Evaluate())
    assert peaks["torch"].update - peaks["triton"].update == 4 * chunk
    assert peaks["torch"].rollout == peaks["triton"].rollout


def test_what_is_gathered_for_an_update_counts():
    """Embeddings and head for a whole pass, two blocks; far below what each process would hold of all weights."""
    schedule = BATCH.model_copy(update={"minibatches": 1})  # each of eight has a full pass
    batch = {"schedule": schedule, "model": Model(dtype="bfloat16", trained_dtype="bfloat16")}
    found = {}
    for sharding in ("optimizer", "weights"):
        recipe = Recipe(compute=Compute(sharding=sharding, gradient_checkpointing=True), **batch)
        held = Held(weights=NUMBERS_7B, trained=NUMBERS_7B, processes=8)
        phase = Phases(model=Architecture.of(QWEN_7B), held=held, recipe=recipe, prompt=256, device="cuda")
        found[sharding] = phase.peaks(Evaluate()).update
    words = 2 * 152_064 * 3584
    saved = found["optimizer"] - found["weights"]
    assert 0 < (2 + 4 + 12 / 8 - 16 / 8) * NUMBERS_7B - saved < 2 * words * 4


def test_weights_in_bfloat16_are_not_cast_again():
    """A pass keeps no copy of them."""
    narrow = Recipe(schedule=BATCH, model=Model(dtype="bfloat16", trained_dtype="bfloat16"))
    wide = Recipe(schedule=BATCH, model=Model(dtype="bfloat16"))
    held = Held(weights=NUMBERS_7B, trained=NUMBERS_7B)
    peaks, usual = phases(narrow).peaks(Evaluate()), phases(wide).peaks(Evaluate())
    saved = held.bytes(wide) - held.bytes(narrow) + 2 * NUMBERS_7B
    assert usual.rollout - peaks.rollout == saved


def test_a_reference_that_is_offloaded_counts_where_it_computes():
    """At the end of a rollout, beside no cache."""
    kl, room = KlInLoss(beta=0.1), Schedule(steps=1, prompts_per_step=1, group_size=2, minibatches=1, max_new_tokens=8)
    kept, away = (Recipe(schedule=room, kl=kl, compute=Compute(offload=names)) for names in ((), ("reference",)))
    usual, found = phases(kept).peaks(Evaluate()), phases(away).peaks(Evaluate())
    assert usual.update - found.update == 4 * NUMBERS_7B
    assert usual.rollout - found.rollout < 10**9  # the reference is there once


def test_longer_responses_and_larger_groups_need_more_and_checkpointing_needs_less():
    """The phases move as the terms do that they are made of."""
    evaluate = Evaluate(problems=100)
    usual = phases().peaks(evaluate)
    longer = phases(Recipe(schedule=BATCH.model_copy(update={"max_new_tokens": 2048}))).peaks(evaluate)
    again = phases(Recipe(schedule=BATCH, compute=Compute(gradient_checkpointing=True))).peaks(evaluate)
    assert longer.rollout > usual.rollout
    assert again.update < usual.update
    assert again.rollout == usual.rollout
    assert phases().largest(evaluate) == ("update", usual.update)
    assert usual.evaluation < usual.rollout
    half = phases(Recipe(schedule=BATCH, model=Model(dtype="bfloat16"))).peaks(evaluate)
    assert half.update < usual.update


def test_a_gradient_of_the_vocabulary_is_made_where_the_code_makes_one():
    """Beside all gradients by tied embeddings, and in a later pass by any; with adapters never."""
    small = {**QWEN_7B, "num_hidden_layers": 1, "hidden_size": 512, "intermediate_size": 64, "num_attention_heads": 4}
    words = QWEN_7B["vocab_size"] * 512

    def update(prompts, *, trained=10**8, vocabulary=152_064, **more):
        schedule = Schedule(steps=1, prompts_per_step=prompts, group_size=4, minibatches=1, max_new_tokens=48)
        model = Architecture.of({**small, "vocab_size": vocabulary, **more})
        held = Held(weights=10**8, trained=trained)
        found = Phases(model=model, held=held, recipe=Recipe(schedule=schedule), prompt=16, device="cpu")
        return found.peaks(Evaluate()).update - held.bytes(found.recipe)

    assert update(1, tie_word_embeddings=True) == 4 * words
    assert update(1) < 4 * words
    assert update(24) == max(4 * words, update(24, trained=10**6))


def test_the_sampler_copies_the_layers_where_it_reads_by_its_own_pass():
    """On CPU cores in float32, of kinds that it knows; not beside adapters, nor where processes share the weights."""
    layers = 28 * 3584 * (2 * 3584 + 2 * 512 + 3 * 18944) * 4

    def rollout(kind, device="cpu", trained=NUMBERS_7B, processes=1, **recipe):
        model = Architecture.of({**QWEN_7B, "model_type": kind})
        held = Held(weights=NUMBERS_7B, trained=trained, processes=processes)
        recipe = Recipe(schedule=BATCH, **recipe)
        return Phases(model=model, held=held, recipe=recipe, prompt=256, device=device).peaks(Evaluate()).rollout

    def copied(**more):
        return rollout("qwen2", **more) - rollout("another", **more)

    assert copied() == layers
    assert copied(device="cuda") == 0
    assert copied(model=Model(dtype="bfloat16")) == 0
    assert copied(trained=10**6) == 0
    assert copied(processes=2) == layers
    assert copied(processes=2, compute=Compute(sharding="weights")) == 0


def test_other_architectures_get_no_number():
    """A mixture of experts, and a configuration without a size."""
    assert Architecture.of({**QWEN_7B, "num_experts": 8}) is None
    assert Architecture.of({"hidden_size": 16}) is None
    assert Architecture.of({**QWEN_7B, "head_dim": 64}).queries == 28 * 64


def test_a_plan_prints_a_line_with_all_phases():
    """Of both kinds of device; with vLLM only what the trainer holds; without sizes or prompts nothing."""
    files = ModelFiles(shapes={"w": (NUMBERS_7B,)}, config=QWEN_7B)
    line, fitting = files.phases(Recipe(schedule=BATCH), Evaluate(), 256)
    assert fitting == "one process with 141 GB: not enough (update 138.0 GB, and a tenth must stay free)"
    half = Recipe(
        schedule=BATCH,
        model=Model(dtype="bfloat16", trained_dtype="bfloat16"),
        compute=Compute(offload=("optimizer",), gradient_checkpointing=True),
    )
    assert files.phases(half, Evaluate(), 256)[1] == (
        "one process with 80 GB of GPU memory: 512 responses at a time, 32,768 tokens a pass; with 141 GB of GPU "
        "memory or more: 1,024 responses at a time, 32,768 tokens a pass; with 48 GB: not enough (update 47.9 GB, "
        "and a tenth must stay free)"
    )
    assert line.startswith("peak memory of one process, computed for responses at their limit: on a GPU rollout ")
    for part in ("old pass", "update", "evaluation", "on CPU cores"):
        assert part in line
    assert files.phases(Recipe(schedule=BATCH), Evaluate(), 0) == []
    other = {
        "kind": "reward",
        "beta": 0.1,
        "reference": {"kind": "model", "name": "another"},
    }  # of a size that is not known here
    assert files.phases(Recipe.model_validate({"schedule": BATCH.model_dump(), "kl": other}), Evaluate(), 256) == []
    assert ModelFiles(config=QWEN_7B).phases(Recipe(schedule=BATCH), Evaluate(), 256) == []


def test_a_plan_says_what_each_of_several_processes_holds():
    """For 2, 4 and 8, or for as many as the study says; and what is in host memory."""
    files = ModelFiles(shapes={"w": (NUMBERS_7B,)}, config=QWEN_7B)
    shared = Recipe(schedule=BATCH, compute=Compute(sharding="optimizer"))
    (line,) = files.memory(shared)
    assert line.endswith(
        "weights, gradients and moments take 91.4 GB, 76.2 GB, 68.5 GB in each of 2, 4 or 8 processes of a run, before "
        "activations and samples"
    )
    (line,) = files.memory(shared, 4)
    assert "take 76.2 GB in each process of a run" in line
    line, fitting = files.phases(shared, Evaluate(), 256)
    assert fitting.startswith("8 processes with 141 GB of GPU memory each: 1,024 responses at a time, ")
    assert "; with 80 GB each: not enough (update " in fitting
    assert len(files.phases(shared, Evaluate(), 256, 4)) == 1  # those are processes on CPUs
    apart = Recipe(schedule=BATCH, compute=Compute(sampling_processes=1))
    assert files.phases(apart, Evaluate(), 256)[1].startswith("2 processes with 141 GB each: not enough (update ")
    assert line.startswith("peak memory of one of 8 processes, computed for")
    half = Model(dtype="bfloat16", trained_dtype="bfloat16")
    away = Recipe(schedule=BATCH, model=half, compute=Compute(offload=("optimizer",)))
    (line,) = files.memory(away)
    assert "weights and gradients take 45.7 GB in each process" in line
    assert line.endswith("; moments are in host memory")


def test_what_is_computed_at_once_fits_and_is_not_less_than_it_has_to_be() -> None:
    """Halved as often as it takes; twice of either does not fit, and with more room there is no less."""
    lora = Recipe(schedule=BATCH, model=Model(dtype="bfloat16", lora=Lora()))
    held = Held(weights=NUMBERS_7B, trained=40_000_000, frozen=2)
    plain = Phases(model=Architecture.of(QWEN_7B), held=held, recipe=lora, prompt=256, device="cuda")
    before = Limits(responses_at_a_time=1, tokens_a_pass=1)
    for size in (32, 48, 64, 80, 141, 1000):
        room = usable(size * BILLION)
        found = plain.fitting(Evaluate(), room)
        now = found.at_once
        assert now.responses_at_a_time >= before.responses_at_a_time
        assert now.tokens_a_pass >= before.tokens_a_pass
        assert found.largest(Evaluate())[1] <= room
        for name, value in vars(now).items():
            more = replace(found, limits=replace(now, **{name: 2 * value}))
            assert value == getattr(USUAL["cuda"], name) or more.largest(Evaluate())[1] > room
        before = now
    assert now == USUAL["cuda"]


def test_what_cannot_fit_leaves_other_phases_as_they_are() -> None:
    """Passes are as short as they get if an update does not fit; what is sampled follows from its own peaks."""
    half = Recipe(schedule=BATCH, model=Model(dtype="bfloat16", trained_dtype="bfloat16"))
    least = phases(half).fitting(Evaluate(), 60 * BILLION)
    assert least.peaks(Evaluate()).update > 60 * BILLION
    assert least.at_once.tokens_a_pass == 256 + 1024 - 1
    assert least.peaks(Evaluate()).rollout > 60 * BILLION
    offloaded = half.model_copy(update={"compute": Compute(offload=("optimizer",))})
    found = phases(offloaded).fitting(Evaluate(), 45 * BILLION)
    assert found.peaks(Evaluate()).update > 45 * BILLION
    assert found.peaks(Evaluate()).rollout <= 45 * BILLION
    assert found.at_once.responses_at_a_time >= 128
    long = Evaluate(sets={"long": EvaluationSet(problems=30, samples=64, max_new_tokens=16_384)})
    kept = phases(offloaded).fitting(long, 76 * BILLION)
    assert kept.peaks(long).evaluation > 76 * BILLION
    assert kept.at_once.responses_at_a_time == 64  # fewer change nothing: the responses to a problem stay together
    assert kept.at_once.tokens_a_pass == phases(offloaded).fitting(Evaluate(), 76 * BILLION).at_once.tokens_a_pass


@pytest.mark.parametrize(
    ("prompts", "minibatches", "processes"), [(3, 2, 1), (5, 4, 1), (4, 1, 8), (12, 1, 8), (7, 2, 3)]
)
def test_passes_have_whole_groups_where_the_code_deals_out_whole_groups(
    prompts: int, minibatches: int, processes: int
) -> None:
    """An update has the larger minibatch; a pass before it the prompts of the process with most of them."""
    schedule = Schedule(steps=1, prompts_per_step=prompts, group_size=2, minibatches=minibatches, max_new_tokens=1024)
    held = Held(weights=NUMBERS_7B, trained=NUMBERS_7B, processes=processes)
    found = replace(phases(Recipe(schedule=schedule)), held=held)
    group = 256 + 2 * 1023
    assert found._group == group
    mine = -(-prompts // processes) * group
    assert mine <= found._tokens_scored(prompts, processes) <= min(prompts * group, mine + group)
    largest = -(-prompts // minibatches) * group
    assert found._tokens_updated() >= largest / processes
    assert found._tokens_updated() <= min(largest, largest / processes + 2 * 256 + 1024)


def test_a_pair_has_two_responses_of_its_group() -> None:
    """The others are left out of the update."""
    pairs = Recipe(schedule=BATCH, kl=KlInLoss(beta=0.1)).model_copy(update={"loss": PairDpo()})
    assert phases(pairs)._tokens_updated() == min(32_768, 16 * (256 + 2 * 1023))
    assert phases(pairs)._least == 2 * (256 + 1023)


def test_another_model_as_the_reference_counts_once() -> None:
    """With its own size, where it is."""
    kl = KlInLoss(beta=0.1, reference=ModelReference(name="other"))
    held = Held(weights=1000, trained=1000, other=300)
    recipe = Recipe(kl=kl)
    assert held.bytes(recipe) == held.bytes(Recipe()) + 300
    assert held.reference(recipe) == 0
    away = Recipe(kl=kl, compute=Compute(offload=("reference",)))
    assert held.bytes(away) == held.bytes(Recipe())
    assert held.reference(away) == 300
    assert held.bytes_to_sample(recipe) == 4000 + 300


def test_with_another_sampler_only_the_passes_have_a_limit() -> None:
    """VLLM has a limit of its own, so responses at a time are not said, and no phase of its counts."""
    vllm = Recipe(schedule=BATCH, rollout=Rollout(engine="vllm"))
    found = phases(vllm).fitting(Evaluate(), 200 * BILLION)
    assert found.about() == f"{found.at_once.tokens_a_pass:,} tokens a pass"
    assert set(found.by_name(Evaluate())) == {"old pass", "update"}
    assert found.at_once.responses_at_a_time == 1024


def test_processes_share_what_is_sampled() -> None:
    """Each of eight samples an eighth of the responses."""
    one, eight = (
        replace(phases(), held=Held(weights=NUMBERS_7B, trained=NUMBERS_7B, processes=count)) for count in (1, 8)
    )
    cache = [each.sampling(128, 8, 1024) for each in (one, eight)]
    assert cache[0] > 4 * cache[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_measurement_on_a_tiny_model_is_within_a_tenth():
    """Sampling, scoring and updating by the code that trains: the peak of resident memory in each phase."""
    script = Path(__file__).parents[3] / "benchmarks" / "phase_memory.py"
    done = subprocess.run([sys.executable, str(script), "--tiny"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 5
    for row in rows:
        if row["bound"] is not None:
            assert all(row[phase][1] <= row["bound"] for phase in ("rollout", "old_pass", "update", "evaluation"))
        assert row["held"][0] == pytest.approx(row["held"][1], rel=1e-4)  # AdamW counts steps beside its moments
        for phase in ("rollout", "old_pass", "update", "evaluation"):
            predicted, measured = row[phase]
            assert predicted == pytest.approx(measured, rel=0.1), (row["name"], phase)
