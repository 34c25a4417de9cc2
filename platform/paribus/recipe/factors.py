"""The 13 factors of the objective, as tagged unions of small frozen values.

Each class is one level of one factor; its fields are the parameters that exist at this level and nowhere else, so
``clip.high`` exists only where the clip rule has it. The letters in the docstrings: ``R`` scalar reward of a response,
``A`` advantage, ``r`` ratio of new to old probability, ``L`` response length in tokens, ``N`` responses and ``P``
prompts in an optimizer batch, ``T`` tokens in it, ``G`` group size.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Level(BaseModel):
    """Base of all levels and records: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# ---- F0 schedule ---------------------------------------------------------------------------------


class Joint(Level):
    """All tokens of a batch are updated together."""

    kind: Literal["joint"] = "joint"


class Lopti(Level):
    """Low-probability tokens first, the others from the new weights (Lopti, arXiv 2505.12929)."""

    kind: Literal["lopti"] = "lopti"
    eta: Fraction = Field(default=0.5, description="old probability below which a token is in the first pass")


class Schedule(Level):
    """F0: how much is sampled, and how often the policy is updated on it."""

    steps: Count = Field(default=40, description="rollout batches, each followed by its updates (the horizon)")
    prompts_per_step: Count = Field(default=16, description="prompts in a rollout batch (P)")
    group_size: Count = Field(default=8, description="responses per prompt (G)")
    minibatches: Count = Field(default=1, description="optimizer updates in one pass over a rollout batch")
    epochs: Count = Field(default=1, description="passes over a rollout batch")
    max_new_tokens: Count = Field(default=37, description="generation limit, tokens incl. the end mark")
    temperature: Positive = Field(default=1.0, description="sampling temperature, also of all log-probabilities")
    staleness: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rollout batches that sampling may lag behind"
    )
    update: Annotated[Joint | Lopti, Field(discriminator="kind")] = Joint()

    @property
    def updates_per_rollout(self) -> int:
        """U, optimizer updates on one rollout batch; with U = 1 the ratio is identically 1."""
        return self.minibatches * self.epochs

    @model_validator(mode="after")
    def _divisible(self) -> Schedule:
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"schedule.minibatches ({self.minibatches}) is larger than schedule.prompts_per_step "
                f"({self.prompts_per_step}): a minibatch holds whole groups, so it needs at least one prompt"
            )
        return self


# ---- F1 reward -----------------------------------------------------------------------------------


class Reward(Level):
    """F1: from the verifier's answer to the scalar reward of a response."""

    map: Literal["binary01", "pm1", "scalar"] = Field(
        default="scalar",
        description="binary01: R = y; pm1: R = 2y - 1 (DAPO Eq. 7); scalar: the task's own score",
    )
    factor: Positive = Field(default=1.0, description="multiplies R (Olmo 3 uses 10)")
    combine: Literal["sum_then_norm", "norm_then_sum"] = Field(
        default="sum_then_norm",
        description="several rewards: weighted sum, then advantages; or each normalised in its group, then summed",
    )
    weights: dict[str, float] = Field(default={}, description="weight of each named reward of the task; empty: 1 each")


# ---- F2 length rule ------------------------------------------------------------------------------


class NoLengthRule(Level):
    """The length does not enter the reward."""

    kind: Literal["none"] = "none"


class SoftOverlong(Level):
    """Soft overlong punishment (DAPO Eq. 13), added to R: 0 up to ``soft_start``, then linear to -1 at ``hard_cap``."""

    kind: Literal["soft_overlong"] = "soft_overlong"
    soft_start: Count = Field(description="longest unpunished response, tokens (L_max - L_cache)")
    hard_cap: Count = Field(description="length punished with -1, tokens (L_max)")
    factor: Positive = Field(default=1.0, description="multiplies the punishment")

    @model_validator(mode="after")
    def _ordered(self) -> SoftOverlong:
        if self.soft_start >= self.hard_cap:
            raise ValueError(f"soft_start ({self.soft_start}) must lie below hard_cap ({self.hard_cap})")
        return self


class Length(Level):
    """F2: what the length of a response does to its reward and to its place in the loss."""

    rule: Annotated[NoLengthRule | SoftOverlong, Field(discriminator="kind")] = NoLengthRule()
    truncated: Literal["as_scored", "mask_loss", "drop"] = Field(
        default="as_scored",
        description="truncated responses: as_scored; mask_loss: out of the loss, still in the group's statistics "
        "(overlong filtering); drop: removed before the baseline",
    )
    count_masked_rows: bool = Field(default=False, description="masked responses stay in the denominator of seq_mean")


# ---- F3 group filter -----------------------------------------------------------------------------

GroupMetric = Literal["correct", "reward_std"]


class NoFilter(Level):
    """Every group is trained on."""

    kind: Literal["none"] = "none"


class Drop(Level):
    """Groups without spread are removed; the batch shrinks."""

    kind: Literal["drop"] = "drop"
    metric: GroupMetric = Field(default="correct", description="what must differ inside a group")


class Refill(Level):
    """Dynamic sampling (DAPO): sample until P groups with spread are there, discard the surplus."""

    kind: Literal["refill"] = "refill"
    metric: GroupMetric = Field(default="correct", description="what must differ inside a group")
    max_generation_batches: Count = Field(
        default=6,
        description="sampling rounds per step; when they are used up the step trains on what it has",
    )


class RefillAsync(Level):
    """Active sampling (Olmo 3): the sampler keeps a queue full, the learner waits for P groups with spread."""

    kind: Literal["refill_async"] = "refill_async"
    metric: GroupMetric = Field(default="reward_std", description="what must differ inside a group")
    max_generation_batches: Count = Field(default=6, description="sampling rounds per step")
    max_surplus: Annotated[int, Field(ge=0)] = Field(default=16, description="groups kept for the next step at most")


# ---- F4 baseline ---------------------------------------------------------------------------------


class NoBaseline(Level):
    """b = 0 (REINFORCE)."""

    kind: Literal["none"] = "none"


class GroupMean(Level):
    """b = mean of R over the group (GRPO, arXiv 2402.03300 section 4.1)."""

    kind: Literal["group_mean"] = "group_mean"


class GroupLeaveOneOut(Level):
    """b_i = mean of the other responses' R (RLOO, arXiv 2402.14740)."""

    kind: Literal["group_loo"] = "group_loo"


class BatchMean(Level):
    """b = mean of R over the batch (REINFORCE++, arXiv 2501.03262)."""

    kind: Literal["batch_mean"] = "batch_mean"


class FixedLambda(Level):
    """One lambda for all responses."""

    kind: Literal["fixed"] = "fixed"
    value: Fraction = 1.0


class LengthAdaptiveLambda(Level):
    """lambda = 1 - 1/(alpha L), clamped to [0, 1] (VAPO, arXiv 2504.05118)."""

    kind: Literal["length_adaptive"] = "length_adaptive"
    alpha: Positive = 0.05


class CriticGae(Level):
    """Per-token advantage by generalised advantage estimation from a value head (PPO, VAPO)."""

    kind: Literal["critic_gae"] = "critic_gae"
    gamma: Fraction = 1.0
    policy_lambda: Annotated[FixedLambda | LengthAdaptiveLambda, Field(discriminator="kind")] = FixedLambda()
    critic_lambda: Fraction = Field(default=1.0, description="lambda of the critic's targets (decoupled GAE)")


class History(Level):
    """Running statistics of each prompt over its visits (DCPO, arXiv 2509.02333)."""

    kind: Literal["history"] = "history"


# ---- F5 advantage scale --------------------------------------------------------------------------


class NoScale(Level):
    """Divisor 1 (Dr. GRPO, RLOO)."""

    kind: Literal["none"] = "none"


class _Std(Level):
    ddof: Literal[0, 1] = Field(default=1, description="0: population, 1: sample standard deviation")
    eps: NonNegative = Field(default=1e-6, description="added to the standard deviation")


class GroupStd(_Std):
    """Divisor std of R over the group + eps (GRPO)."""

    kind: Literal["group_std"] = "group_std"


class _BatchStd(_Std):
    unit: Literal["sequence", "token"] = Field(default="sequence", description="what one response counts: 1, or L")


class BatchStdRaw(_BatchStd):
    """Divisor std of raw R over the batch (Lite PPO as TRL has it)."""

    kind: Literal["batch_std_raw"] = "batch_std_raw"


class BatchStdCentred(_BatchStd):
    """Divisor std over the batch of R minus its group's mean (REINFORCE++-baseline)."""

    kind: Literal["batch_std_centred"] = "batch_std_centred"


class BatchWhiten(_BatchStd):
    """Batch mean subtracted, then divided by the batch std (REINFORCE++, PPO)."""

    kind: Literal["batch_whiten"] = "batch_whiten"


class HistorySmooth(_Std):
    """DCPO's smoothed advantage standardisation."""

    kind: Literal["history_smooth"] = "history_smooth"


# ---- F6 ratio ------------------------------------------------------------------------------------


class NoRatio(Level):
    """No ratio: the REINFORCE form -A log pi."""

    kind: Literal["none"] = "none"


class TokenRatio(Level):
    """r = pi_new / pi_old of each token (PPO, GRPO)."""

    kind: Literal["token"] = "token"


class SequenceGeometric(Level):
    """Geometric mean of the token ratios of a response (GSPO, arXiv 2507.18071)."""

    kind: Literal["seq_geo"] = "seq_geo"


class SequenceGeometricToken(Level):
    """GSPO's value with the gradient on each token (GSPO-token)."""

    kind: Literal["seq_geo_token"] = "seq_geo_token"


class SequenceProduct(Level):
    """Product of the token ratios of a response (RLOO in TRL)."""

    kind: Literal["seq_product"] = "seq_product"


class GeometricClipped(Level):
    """Geometric mean of token ratios that were clipped first (GMPO, arXiv 2507.20673)."""

    kind: Literal["geo_clipped"] = "geo_clipped"


# ---- F7 clip -------------------------------------------------------------------------------------


class NoClip(Level):
    """r A."""

    kind: Literal["none"] = "none"


class _Band(Level):
    low: Fraction = Field(default=0.2, description="lower bound of r is 1 - low")
    high: NonNegative = Field(default=0.2, description="upper bound of r is 1 + high")


class PpoMin(_Band):
    """min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347 Eq. 7; clip-higher: high > low, DAPO Eq. 8)."""

    kind: Literal["ppo_min"] = "ppo_min"


class PpoDual(_Band):
    """ppo_min, and for A < 0 not below c A (dual clip)."""

    kind: Literal["ppo_dual"] = "ppo_dual"
    c: Annotated[float, Field(gt=1)] = 3.0


class TwoSided(_Band):
    """ppo_min with r capped at delta for both signs of A (INTELLECT-2; TRL ``delta``)."""

    kind: Literal["two_sided"] = "two_sided"
    delta: Annotated[float, Field(gt=1)] = 4.0


class CappedWeight(Level):
    """sg(clip(r, floor, cap)) A log pi (CISPO, arXiv 2506.13585); cap is the absolute maximum of r."""

    kind: Literal["is_cap_sg"] = "is_cap_sg"
    cap: Positive = 1.28
    floor: NonNegative = 0.0


class SoftGate(Level):
    """(4 / tau) sigmoid(tau (r - 1)) A (SAPO, arXiv 2511.20347)."""

    kind: Literal["soft_gate"] = "soft_gate"
    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class DynamicBand(Level):
    """ppo_min with bounds that widen for rare tokens (DCPO)."""

    kind: Literal["dynamic"] = "dynamic"
    low: Fraction = 0.16
    high: NonNegative = 0.2
    cap: Annotated[float, Field(gt=1)] = Field(default=10.0, description="largest upper bound of r")


class LogClip(Level):
    """One-sided clamp of log r to [-low, high] by the sign of A, before the mean (GMPO); bounds in nats."""

    kind: Literal["log_clip"] = "log_clip"
    low: Positive = 0.4
    high: Positive = 0.4


# ---- F8 aggregation ------------------------------------------------------------------------------


class SequenceMean(Level):
    """(1/N) sum_i (1/L_i) sum_t x (GRPO)."""

    kind: Literal["seq_mean"] = "seq_mean"


class TokenGroup(Level):
    """(1/P) sum_q [sum x / tokens of group q] (DAPO Eq. 8 as written)."""

    kind: Literal["token_group"] = "token_group"


class TokenBatch(Level):
    """sum x / T over the optimizer batch (DAPO's code): the token-level loss."""

    kind: Literal["token_batch"] = "token_batch"


class TokenMicro(Level):
    """sum x / T over each micro-batch, then averaged (TRL ``bnpo``); depends on the split."""

    kind: Literal["token_micro"] = "token_micro"


class ConstantLength(Level):
    """sum x / (N C) (Dr. GRPO, arXiv 2503.20783)."""

    kind: Literal["const"] = "const"
    length: Count | None = Field(default=None, description="C in tokens; absent: schedule.max_new_tokens")


class SequenceSum(Level):
    """(1/N) sum_i sum_t x (the policy gradient of J itself)."""

    kind: Literal["seq_sum"] = "seq_sum"


class SequenceMeanSum(Level):
    """sum_i (1/L_i) sum_t x (DCPO's only-token-mean)."""

    kind: Literal["seq_meansum"] = "seq_meansum"


# ---- F9 KL ---------------------------------------------------------------------------------------


class NoKl(Level):
    """No KL term; the reference model is not loaded."""

    kind: Literal["off"] = "off"


class _Kl(Level):
    estimator: Literal["k1", "k2", "k3"]
    beta: Positive
    reference: Literal["fixed", "synced"] = Field(default="fixed", description="fixed: the initial policy")


class KlInReward(_Kl):
    """beta times the estimate is subtracted from R, before the baseline."""

    kind: Literal["reward"] = "reward"
    estimator: Literal["k1", "k2", "k3"] = "k1"


class KlInLoss(_Kl):
    """beta times the estimate is added to the loss of each token (GRPO: k3)."""

    kind: Literal["loss"] = "loss"
    estimator: Literal["k1", "k2", "k3"] = "k3"
    beta: Positive = 0.04

    @model_validator(mode="after")
    def _acts(self) -> KlInLoss:
        if self.estimator == "k1":
            raise ValueError("k1 in the loss has gradient zero in expectation: use k2 or k3, or `kind: reward`")
        return self


class KlInLossWeighted(_Kl):
    """beta r k with a differentiable ratio (DeepSeek-V3.2; TRL's default)."""

    kind: Literal["loss_isw"] = "loss_isw"
    estimator: Literal["k1", "k2", "k3"] = "k3"


# ---- F10 importance correction -------------------------------------------------------------------


class NoCorrection(Level):
    """Sampler and learner are taken to agree."""

    kind: Literal["off"] = "off"


class TokenTruncate(Level):
    """min(w, cap) on each token (TIS)."""

    kind: Literal["token_truncate"] = "token_truncate"
    cap: Positive = 2.0


class _Range(Level):
    low: NonNegative = 0.5
    high: Positive = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> _Range:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must lie below high ({self.high})")
        return self


class TokenMask(_Range):
    """w where low <= w <= high, else 0, on each token (IcePop)."""

    kind: Literal["token_mask"] = "token_mask"


class SequenceTruncate(Level):
    """min(W, cap) with W the product of w over the response."""

    kind: Literal["seq_truncate"] = "seq_truncate"
    cap: Positive = 2.0


class SequenceMask(_Range):
    """W where low <= W <= high, else 0."""

    kind: Literal["seq_mask"] = "seq_mask"


class GeometricMask(_Range):
    """Responses are kept or dropped by the geometric mean of w."""

    kind: Literal["geo_mask"] = "geo_mask"


# ---- F11 token weight ----------------------------------------------------------------------------


class UniformWeight(Level):
    """All tokens weigh the same."""

    kind: Literal["uniform"] = "uniform"


class TopEntropy(Level):
    """Only the given fraction of tokens with the highest entropy is trained on."""

    kind: Literal["top_entropy"] = "top_entropy"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.2


class AdvantageReweight(Level):
    """A (alpha p_old + 1 - alpha) on each token (companion of Lopti)."""

    kind: Literal["advantage_reweight"] = "advantage_reweight"
    alpha: Fraction = 0.3


class RouterShift(Level):
    """Tokens whose experts changed weigh less (RSPO, arXiv 2510.23027); needs a mixture-of-experts model."""

    kind: Literal["router_shift"] = "router_shift"
    floor: Fraction = 0.8
    target: Literal["ratio", "token"] = Field(
        default="ratio", description="what gamma multiplies; the sources leave it open"
    )


# ---- F12 auxiliary losses ------------------------------------------------------------------------


class ValueLoss(Level):
    """Loss and training of the critic."""

    coefficient: Positive = 1.0
    clip: Positive | None = Field(default=None, description="half-width of the value clip; absent: none")
    pretrain_steps: Annotated[int, Field(ge=0)] = 0
    learning_rate: Positive = 1e-3


class Auxiliary(Level):
    """F12: terms beside the policy loss; 0 switches one off."""

    entropy: float = Field(default=0.0, description="coefficient of the entropy bonus")
    positive_nll: NonNegative = Field(default=0.0, description="coefficient mu of the NLL of correct responses (VAPO)")
    value: ValueLoss | None = None


# ---- the loss family -----------------------------------------------------------------------------


class PolicyGradient(Level):
    """The family that the 13 factors span."""

    kind: Literal["policy_gradient"] = "policy_gradient"


class PairDpo(Level):
    """-log sigmoid of the margin between the best and the worst response of a group; outside the factors."""

    kind: Literal["pair_dpo"] = "pair_dpo"
    beta: Positive = 0.1


Filter = Annotated[NoFilter | Drop | Refill | RefillAsync, Field(discriminator="kind")]
Baseline = Annotated[
    NoBaseline | GroupMean | GroupLeaveOneOut | BatchMean | CriticGae | History, Field(discriminator="kind")
]
Scale = Annotated[
    NoScale | GroupStd | BatchStdRaw | BatchStdCentred | BatchWhiten | HistorySmooth,
    Field(discriminator="kind"),
]
Ratio = Annotated[
    NoRatio | TokenRatio | SequenceGeometric | SequenceGeometricToken | SequenceProduct | GeometricClipped,
    Field(discriminator="kind"),
]
Clip = Annotated[
    NoClip | PpoMin | PpoDual | TwoSided | CappedWeight | SoftGate | DynamicBand | LogClip,
    Field(discriminator="kind"),
]
Aggregation = Annotated[
    SequenceMean | TokenGroup | TokenBatch | TokenMicro | ConstantLength | SequenceSum | SequenceMeanSum,
    Field(discriminator="kind"),
]
Kl = Annotated[NoKl | KlInReward | KlInLoss | KlInLossWeighted, Field(discriminator="kind")]
Correction = Annotated[
    NoCorrection | TokenTruncate | TokenMask | SequenceTruncate | SequenceMask | GeometricMask,
    Field(discriminator="kind"),
]
TokenWeight = Annotated[UniformWeight | TopEntropy | AdvantageReweight | RouterShift, Field(discriminator="kind")]
Loss = Annotated[PolicyGradient | PairDpo, Field(discriminator="kind")]
