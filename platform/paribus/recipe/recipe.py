"""A recipe: everything that defines one RL post-training job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.rollout import Rollout
from paribus.recipe.trained import name_faults
from paribus.recipe.turns import FunctionTurns, SingleTurn, Turns
from paribus.text import plural

FACTORS: tuple[str, ...] = (
    "schedule",
    "reward",
    "length",
    "filter",
    "baseline",
    "scale",
    "ratio",
    "clip",
    "aggregation",
    "kl",
    "correction",
    "token_weight",
    "auxiliary",
)
"""The 13 factors, F0 to F12, in the order in which they act."""


TINY_MODELS = ("tiny", "tiny_wide", "tiny_moe")
"""Names of the models that are made on the spot; the default of ``optimizer.learning_rate`` is for these alone."""


ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose experts: an adapter there would change which weights a token meets."""


class Lora(f.Level):
    """Low-rank adapters beside linear layers, in float32, are trained, and nothing else (LoRA, arXiv 2106.09685)."""

    rank: f.Count = Field(default=16, description="width of an adapter, B A with A [rank, in] and B [out, rank]")
    alpha: f.Positive = Field(default=32, description="B A is multiplied by alpha / rank")
    layers: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] | None = Field(
        default=None,
        description="last words of the names of the layers, e.g. `[q_proj, v_proj]`; absent: all linear layers of the "
        "blocks but routers",
    )

    @field_validator("layers")
    @classmethod
    def _no_routers(cls, layers: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if routers := sorted(ROUTERS & {*(layers or ())}):
            raise ValueError(f"{', '.join(routers)}: layers that choose experts get no adapters. Name other layers")
        return layers


Parameters = Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?\[\]!-]+$")], ...], Field(min_length=1)]
"""Parameters of a model: `embeddings`, `head`, `blocks`, `first_4`, `last_4`, or names with `*`, such as `*.mlp.*`."""


class Model(f.Level):
    """The causal language model that is trained."""

    name: Annotated[str, Field(min_length=1)] = Field(
        default="tiny",
        description="`tiny`, `tiny_wide` or `tiny_moe` (made on the spot), a local folder, a name on the Hugging Face "
        "hub, or `study:NAME/ARM`: what a run of another study has trained with the same seed (`@3` at the end: with "
        "seed 3)",
    )
    revision: str | None = Field(default=None, description="commit of the hub repository; pin it for a published table")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of the computations, and of weights that are not trained"
    )
    trained_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="type of weights that are trained; `bfloat16`: the optimizer steps float32 copies of them, and "
        "gradients are summed in float32",
    )
    logits_dtype: Literal["auto", "float32"] = Field(
        default="auto",
        description="type of the last product, from hidden states to logits, in sampling and training; `auto`: that of "
        "`dtype`; `float32` under bfloat16: ScaleRL",
    )
    lora: Lora | None = Field(default=None, description="train adapters in place of the weights; absent: the weights")

    train: Parameters | None = Field(
        default=None,
        description="only these parameters are trained: `embeddings`, `head`, `blocks`, `first_4` or `last_4` blocks, "
        "or names with `*`, such as `*.mlp.*`; absent: all",
    )
    freeze: Parameters | None = Field(default=None, description="all but these are trained, in place of `train`")

    @model_validator(mode="after")
    def _named(self) -> Model:
        if fault := name_faults(self.name, self.revision):
            raise ValueError(fault)
        if self.trained_dtype == "bfloat16" and (self.dtype != "bfloat16" or self.lora is not None):
            other = "adapters are trained in float32" if self.lora else "computations in float32 would gain nothing"
            raise ValueError(f"`model.trained_dtype: bfloat16` needs `model.dtype: bfloat16` without `lora`: {other}")
        chosen = [name for name in ("train", "freeze", "lora") if getattr(self, name) is not None]
        if len(chosen) > 1:
            ways = " and ".join(f"`model.{name}`" for name in chosen)
            raise ValueError(f"{ways} exclude each other: each says what is trained. Keep one")
        return self

    @property
    def head_dtype(self) -> str:
        """The type in which logits are computed."""
        return self.dtype if self.logits_dtype == "auto" else self.logits_dtype

    @model_serializer(mode="wrap", when_used="json")
    def _without_later_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options that came later where they do nothing: recipes keep their text from before."""
        values: dict[str, Any] = dump(self)
        plain = {"lora": None, "logits_dtype": "auto", "train": None, "freeze": None, "trained_dtype": "float32"}
        return {k: v for k, v in values.items() if k not in plain or v != plain[k]}


Text = Annotated[str, Field(min_length=1)]
Verifier = Literal["exact", "last_number", "boxed", "math_verify"]
"""How an answer is extracted from a response."""
Format = Literal["gsm8k", "math", "dapo_math", "aime"]
"""Published formats of datasets of problems with answers."""


class SearchTask(f.Level):
    """Generated: find two of n letters whose values add up to the target; several visible tries."""

    kind: Literal["search"] = "search"
    problems: f.Count | None = Field(default=None, description="training problems; absent: new ones without end")


class ChainTask(f.Level):
    """Generated: add n digits, at once or written out step by step."""

    kind: Literal["chain"] = "chain"
    problems: f.Count | None = Field(default=None, description="training problems; absent: new ones without end")
    careful: f.Fraction = Field(default=0.1, description="share of written-out answers in the tiny model's warm-up")


class JsonlTask(f.Level):
    """Prompts and reference answers from JSON-lines files with the fields ``prompt`` and ``answer``."""

    kind: Literal["jsonl"] = "jsonl"
    train: Annotated[str, Field(min_length=1)] = Field(description="path of the training problems")
    heldout: Annotated[str, Field(min_length=1)] = Field(description="path of the evaluation problems")
    verifier: Verifier = Field(
        default="last_number",
        description="how the answer is extracted from a response and compared; math_verify: as mathematics, by the "
        "library math-verify (`paribus[math]`)",
    )


LINES = (".jsonl", ".ndjson", ".json")
"""Ends of names of files with JSON lines."""


class Source(f.Level):
    """Rows of a file or of a dataset on the Hugging Face hub, and the columns that hold prompt and answer."""

    path: Text | None = Field(
        default=None, description="a JSON-lines or Parquet file, or a folder with a copy of a dataset of the hub"
    )
    name: Text | None = Field(default=None, description="a dataset on the Hugging Face hub, e.g. `openai/gsm8k`")
    config: Text | None = Field(default=None, description="configuration of the dataset, where it has several")
    split: Text | None = Field(default=None, description="split of a dataset, e.g. `train`; a file has none")
    revision: Text | None = Field(default=None, description="commit on the hub; the plan warns if it is not one")
    format: Format | None = Field(default=None, description="in place of the task's `format` for these rows")
    prompt: Text | None = Field(default=None, description="in place of the task's `prompt` for these rows")
    answer: Text | None = Field(default=None, description="in place of the task's `answer` for these rows")

    def problems(self, field: str) -> list[str]:
        """Return what is wrong; ``field`` is the path of this part in a recipe."""
        if (self.path is None) == (self.name is None):
            return [f"`{field}` needs either `path`, for a file or folder, or `name`, for a dataset of the hub"]
        found = []
        if self.name is not None and self.split is None:
            found.append(f"`{field}` needs `split`, e.g. `split: train`, because a dataset of the hub has several")
        if self.path is not None and self.revision is not None:
            found.append(f"`{field}.revision` belongs to `name`: a file or folder at `path` has none")
        return found


class DatasetTask(f.Level):
    """Prompts and reference answers from files or the Hugging Face hub, in their own columns, as a chat or plain."""

    kind: Literal["dataset"] = "dataset"
    train: Source = Field(description="training problems: a path, or `{name, config, split, revision}`")
    heldout: Source = Field(description="evaluation problems, likewise")
    format: Format | None = Field(
        default=None,
        description="published format: columns, how the answer stands in its column, and the default of `verifier`",
    )
    prompt: Text | None = Field(
        default=None,
        description="column of the prompt, a text or a list of messages; absent: that of the format, else `prompt`",
    )
    answer: Text | None = Field(
        default=None, description="column of the answer, `a.b` inside a mapping; absent: of the format, else `answer`"
    )
    system: Text | None = Field(default=None, description="system prompt, put before every prompt")
    template: Literal["chat", "none"] = Field(
        default="chat", description="`chat`: the chat template of the model's tokenizer; `none`: the text as it is"
    )
    verifier: Verifier | None = Field(
        default=None,
        description="how the answer is extracted from a response and compared; absent: of the format, else last_number",
    )

    @model_validator(mode="after")
    def _complete(self) -> DatasetTask:
        found = [*self.train.problems("task.train"), *self.heldout.problems("task.heldout")]
        if self.template == "none" and self.system is not None:
            found.append("`task.system` needs `task.template: chat`: plain text has no place for a system prompt")
        if found:
            raise ValueError("; ".join(found))
        return self


Task = Annotated[SearchTask | ChainTask | JsonlTask | DatasetTask, Field(discriminator="kind")]


class Optimizer(f.Level):
    """AdamW and its clipping."""

    learning_rate: f.Positive = Field(
        default=5e-4, description="the default is for the tiny models; with any other model a study must state it"
    )
    beta1: f.Fraction = 0.9
    beta2: f.Fraction = 0.99
    eps: f.Positive = 1e-8
    weight_decay: f.NonNegative = 0.0
    max_grad_norm: f.Positive | None = Field(
        default=1.0, description="global L2 norm above which gradients are scaled down"
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(default=0, description="steps of linear warm-up")


LATER = ("turns", "rollout", "compute")
"""Sections added after version 0.1; stored recipes leave them out where they do nothing."""


class Recipe(f.Level):
    """Model, task, optimizer, the 13 factors of the objective, and how a run samples and computes.

    Frozen; equal values are the same job.
    """

    model: Model = Model()
    task: Task = SearchTask()
    optimizer: Optimizer = Optimizer()
    loss: f.Loss = f.PolicyGradient()
    schedule: f.Schedule = f.Schedule()
    reward: f.Reward = f.Reward()
    length: f.Length = f.Length()
    filter: f.Filter = f.NoFilter()
    baseline: f.Baseline = f.GroupMean()
    scale: f.Scale = f.GroupStd()
    ratio: f.Ratio = f.TokenRatio()
    clip: f.Clip = f.PpoMin()
    aggregation: f.Aggregation = f.SequenceMean()
    kl: f.Kl = f.NoKl()
    correction: f.Correction = f.NoCorrection()
    token_weight: f.TokenWeight = f.UniformWeight()
    auxiliary: f.Auxiliary = f.Auxiliary()
    turns: Turns = SingleTurn()
    rollout: Rollout = Rollout()
    compute: Compute = Compute()

    @model_serializer(mode="wrap", when_used="json")
    def _without_default_sections(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out sections added after version 0.1 that have no effect: its processes read plans and jobs too."""
        values: dict[str, Any] = dump(self)
        added = {name: type(self).model_fields[name].default for name in LATER}
        return {k: v for k, v in values.items() if k not in added or getattr(self, k) != added[k]}

    def at(self, step: int) -> Recipe:
        """Return the recipe as it acts in a step: with the temperature that the schedule has then."""
        if self.schedule.temperature_change.kind == "none":
            return self
        now = {"temperature": self.schedule.temperature_at(step), "temperature_change": f.SteadyTemperature()}
        return self.model_copy(update={"schedule": self.schedule.model_copy(update=now)})

    def whole(self) -> dict[str, Any]:
        """Return all values as JSON has them, also of sections that stored recipes leave out."""
        return self.model_dump(mode="json") | {name: getattr(self, name).model_dump(mode="json") for name in LATER}

    @property
    def functions(self) -> tuple[f.RewardFunction | FunctionTurns, ...]:
        """Everything that calls Python functions of the user."""
        turns = (self.turns,) if isinstance(self.turns, FunctionTurns) else ()
        return (*self.reward.functions.values(), *turns)

    @property
    def most_tokens(self) -> int:
        """Tokens that ``schedule.steps`` steps generate if each response and each number of rounds is the largest."""
        return self.most_prompts * self.schedule.group_size * self.schedule.max_new_tokens

    @property
    def most_prompts(self) -> int:
        """Prompts that ``schedule.steps`` steps sample if each number of rounds is the largest."""
        schedule, value = self.schedule, self.auxiliary.value
        rounds = self.filter.max_generation_batches if isinstance(self.filter, f.Refill | f.RefillAsync) else 1
        before = value.pretrain_steps if value else 0
        return (schedule.steps + before) * rounds * schedule.prompts_per_step

    @model_validator(mode="after")
    def _coupled(self) -> Recipe:
        problems = list(self._coupling_problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _coupling_problems(self) -> list[str]:
        """Return the combinations of levels that have no meaning (``couplings`` in docs/reference/recipes.md)."""
        return [
            *self._levels_that_go_together(),
            *self._schedule_problems(),
            *self._group_problems(),
            *self._pass_at_k_problems(),
            *self._step_problems(),
            *self._pair_problems(),
            *self._mirror_problems(),
            *self._truncation_problems(),
        ]

    def _levels_that_go_together(self) -> list[str]:
        found: list[str] = []
        critic = self.baseline.kind == "critic_gae"
        if critic != (self.auxiliary.value is not None):
            found.append("`baseline: critic_gae` and `auxiliary.value` go together: set both or neither")
        if (self.clip.kind == "log_clip") != (self.ratio.kind == "geo_clipped"):
            found.append("`clip: log_clip` and `ratio: geo_clipped` go together: set both or neither")
        if (self.scale.kind == "history_smooth") != (self.baseline.kind == "history"):
            found.append("`scale: history_smooth` and `baseline: history` go together: set both or neither")
        if critic and self.scale.kind not in ("none", "batch_whiten"):
            found.append("`baseline: critic_gae` gives each token its advantage: scale must be none or batch_whiten")
        if getattr(self.kl, "unit", "sequence") == "token" and (
            self.baseline.kind not in ("none", "batch_mean", "critic_gae")
            or self.scale.kind not in ("none", "batch_whiten")
        ):
            found.append(
                "`kl.unit: token` gives each token its return: baseline must be none, batch_mean or critic_gae, and "
                "scale none or batch_whiten"
            )
        found += self._routing_problems()
        if self.reward.combine == "norm_then_sum":
            found += self._norm_then_sum_problems()
        return found

    def _schedule_problems(self) -> list[str]:
        """Return what of the schedule is never reached, or comes too late."""
        found: list[str] = []
        if isinstance(self.length.rule, f.SoftOverlong) and self.length.rule.soft_start >= self.schedule.max_new_tokens:
            found.append(
                f"length.rule.soft_start ({self.length.rule.soft_start}) is never passed: "
                f"generation stops at schedule.max_new_tokens ({self.schedule.max_new_tokens}). Lower "
                "length.rule.soft_start and length.rule.hard_cap, or raise schedule.max_new_tokens"
            )
        if (tokens := self.schedule.tokens) is not None and tokens > (most := self.most_tokens):
            found.append(
                f"schedule.tokens ({tokens:,}) is never spent: "
                f"{plural(self.schedule.steps, 'step generates', 'steps generate')} at most {most:,} tokens. "
                "Raise schedule.steps"
            )
        if (prompts := self.schedule.prompts) is not None and prompts > self.most_prompts:
            found.append(
                f"schedule.prompts ({prompts:,}) is never spent: "
                f"{plural(self.schedule.steps, 'step samples', 'steps sample')} at most {self.most_prompts:,} prompts. "
                "Raise schedule.steps"
            )
        if self.schedule.temperature_change.kind != "none" and self.filter.kind == "refill_async":
            found.append(
                "`filter: refill_async` trains on groups of an earlier step, and their log-probabilities are of its "
                "temperature, not of one that `schedule.temperature_change` has moved: set `filter: refill`"
            )
        return found

    def _routing_problems(self) -> list[str]:
        """Return what does not go together with a weight by routing."""
        found: list[str] = []
        shift, clip = self.token_weight, self.clip.kind
        if shift.kind != "router_shift":
            return found
        if clip in ("clip_cov", "kl_cov", "bapo"):
            found.append(
                f"`clip: {clip}` looks at a whole batch before it is routed, and `token_weight: router_shift` weighs "
                "tokens by their routing: choose one of them"
            )
        if shift.target == "ratio" and self.ratio.kind == "none":
            found.append("`token_weight.target: ratio` needs a ratio, but `ratio` is `none`")
        return found

    def _norm_then_sum_problems(self) -> list[str]:
        """Return what the definition of reward-decoupled normalisation (arXiv 2601.05242) does not cover."""
        found: list[str] = []
        if len(self.reward.counts) < 2:
            found.append(
                "`reward.combine: norm_then_sum` needs two rewards: set reward.weights.format or reward.functions"
            )
        if self.baseline.kind != "group_mean" or self.scale.kind != "batch_whiten":
            found.append(
                "`reward.combine: norm_then_sum` normalises each reward in its group, and the sum over the batch: it "
                "needs `baseline: group_mean` and `scale: batch_whiten`"
            )
        if self.length.rule.kind != "none" or self.kl.kind == "reward":
            found.append(
                "`reward.combine: norm_then_sum` has no place for length rule and KL in the reward: switch them off"
            )
        return found

    def _group_problems(self) -> list[str]:
        found: list[str] = []
        keep, size = self.length.keep, self.schedule.group_size
        if not isinstance(keep, f.KeepAll) and keep.count > size:
            found.append(
                f"`length.keep` keeps {keep.count} of {size} responses: length.keep.count must be schedule.group_size "
                "or less"
            )
        if self.schedule.group_size < 2:
            if self.loss.kind == "pair_dpo":
                found.append("`loss: pair_dpo` compares responses of a group: schedule.group_size must be 2 or more")
            if self.filter.kind != "none":
                found.append(
                    f"`filter: {self.filter.kind}` compares responses of a group: schedule.group_size must be 2 or more"
                )
            if self.baseline.kind == "group_loo":
                found.append("`baseline: group_loo` needs other responses: schedule.group_size must be 2 or more")
        return found

    def _pass_at_k_problems(self) -> list[str]:
        """Return where there are no sets of k responses, or nothing to compare them with."""
        level, size = self.baseline, self.length.kept(self.schedule.group_size)
        if not isinstance(level, f.PassAtK):
            needs = "`scale: pass_at_k_std` divides by what `baseline: pass_at_k` compares: set both, or another scale"
            return [needs] if self.scale.kind == "pass_at_k_std" else []
        found: list[str] = []
        if level.k > size:
            found.append(
                f"`baseline: pass_at_k` takes sets of {level.k} responses out of a group of {size}: baseline.k must be "
                "schedule.group_size or less, and length.keep.count or less"
            )
        elif level.k == size and level.control == "mean":
            found.append(
                f"`baseline.control: mean` compares several sets of {level.k} responses, and a group of {size} has one "
                "alone: baseline.k must be less than schedule.group_size"
            )
        if level.k == size and self.scale.kind == "pass_at_k_std":
            found.append(
                f"`scale: pass_at_k_std` needs several sets of {level.k} responses, and a group of {size} has one: "
                "baseline.k must be less than schedule.group_size"
            )
        if self.length.truncated == "drop":
            found.append(
                "`baseline: pass_at_k` needs whole groups, and `length.truncated: drop` removes responses from them: "
                "set mask_loss"
            )
        return found

    def _step_problems(self) -> list[str]:
        """Return what has no place beside rewards of steps, which need a baseline that reads them."""
        steps = [name for name, function in self.reward.functions.items() if function.unit == "step"]
        if self.baseline.kind != "group_steps":
            needs = ", ".join(f"`reward.functions.{name}.unit: step`" for name in steps)
            return [f"{needs} needs `baseline: group_steps`, which reads the rewards of steps"] if steps else []
        found: list[str] = []
        if self.scale.kind not in ("none", "group_std"):
            found.append(
                "`baseline: group_steps` normalises over the steps of a group: scale must be none or group_std"
            )
        if self.reward.combine == "norm_then_sum":
            found.append("`baseline: group_steps` adds rewards at a token: `reward.combine` must be sum_then_norm")
        if self.loss.kind == "opmd":
            found.append("`loss: opmd` regresses whole responses, and `baseline: group_steps` has advantages of tokens")
        if not steps and not self.reward.counts:
            found.append("`baseline: group_steps` has nothing to read: give a reward a weight")
        return found

    def _pair_problems(self) -> list[str]:
        """Return what acts on single tokens or through advantages, and so has no place in a loss of pairs."""
        if self.loss.kind != "pair_dpo":
            return []
        off = {
            "kl": self.kl.kind == "off",
            "correction": self.correction.kind == "off",
            "token_weight": self.token_weight.kind == "uniform",
            "baseline": self.baseline.kind == "none",
            "schedule.update": self.schedule.update.kind == "joint",
            "auxiliary": self.auxiliary == f.Auxiliary(),
        }
        wrong = [name for name, holds in off.items() if not holds]
        return [f"`loss: pair_dpo` knows no {', '.join(wrong)}: switch off"] if wrong else []

    def _mirror_problems(self) -> list[str]:
        """Return what has no place in a regression on the log-probabilities of whole responses."""
        if self.loss.kind != "opmd":
            return []
        off = {
            "ratio (set `ratio: none`)": self.ratio.kind == "none",
            "clip (set `clip: none`)": self.clip.kind == "none",
            "correction (set `correction: off`)": self.correction.kind == "off",
            "weights of tokens (set `token_weight: uniform`)": self.token_weight.kind == "uniform",
            "passes by token (set `schedule.update: joint`)": self.schedule.update.kind == "joint",
            "advantages of tokens (set another `baseline`)": self.baseline.kind != "critic_gae",
            "KL by token (set `kl.unit: sequence`)": getattr(self.kl, "unit", "sequence") == "sequence",
            "KL in advantages (set `kl: reward`)": self.kl.kind != "advantage",
        }
        wrong = [name for name, holds in off.items() if not holds]
        return [f"`loss: opmd` regresses whole responses and has no {', no '.join(wrong)}"] if wrong else []

    def _truncation_problems(self) -> list[str]:
        """Return what is about the whole vocabulary where tokens are sampled from a part of it."""
        if not self.schedule.truncates:
            return []
        wrong = []
        if self.loss.kind == "pair_dpo":
            wrong.append("`loss: pair_dpo` compares responses by their probability under the whole distribution")
        if self.auxiliary.positive_nll:
            wrong.append("`auxiliary.positive_nll` raises the probability of a response under the whole distribution")
        ends = "with `schedule.top_p` or `schedule.top_k` there are only those of the tokens that were left: switch off"
        return [f"{each}, and {ends} one of the two" for each in wrong]


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, so that equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON of a value, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{"clip.kind": "ppo_min", "clip.low": 0.2, ...}`` for a nested mapping; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def difference(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two recipes: dotted path to (before, after); ``None`` where a path is absent.

    Of a reward function that only one of them has, what it states counts, and not the defaults of the rest.
    """
    old, new = _compared(before, after), _compared(after, before)
    return {k: (old.get(k), new.get(k)) for k in sorted(old | new) if old.get(k) != new.get(k)}


def _compared(recipe: Recipe, other: Recipe) -> dict[str, Any]:
    """Return the values of a recipe by path, as :func:`difference` compares them with another."""
    values = recipe.whole()
    values["length"]["keep"] = recipe.length.keep.model_dump()
    values["schedule"]["temperature_change"] = recipe.schedule.temperature_change.model_dump(mode="json")
    values["schedule"]["top_p"] = recipe.schedule.top_p
    values["model"]["logits_dtype"] = recipe.model.logits_dtype
    values["rollout"]["routing_replay"] = recipe.rollout.routing_replay
    own = recipe.reward.functions
    for name in own.keys() - other.reward.functions.keys():
        values["reward"]["functions"][name] = own[name].model_dump(mode="json", exclude_defaults=True)
    return flatten(values)
