"""The 13 factors of the objective, as tagged unions of small frozen values.

One file a factor. Each class is one level of it; its fields are the parameters that exist at this level and nowhere
else, so ``clip.high`` exists only where the clip rule has it. The letters in the docstrings: ``R`` scalar reward of a
response, ``A`` advantage, ``r`` ratio of new to old probability, ``L`` response length in tokens, ``N`` responses and
``P`` prompts in an optimizer batch, ``T`` tokens in it, ``G`` group size.
"""

from paribus.recipe.factors.aggregation import (
    Aggregation,
    ConstantLength,
    SequenceMean,
    SequenceMeanSum,
    SequenceSum,
    TokenBatch,
    TokenGroup,
    TokenMicro,
)
from paribus.recipe.factors.auxiliary import Auxiliary, ValueLoss
from paribus.recipe.factors.baseline import (
    Baseline,
    BatchMean,
    CriticGae,
    FixedLambda,
    GroupLeaveOneOut,
    GroupMean,
    History,
    LengthAdaptiveLambda,
    NoBaseline,
)
from paribus.recipe.factors.clip import (
    CappedWeight,
    Clip,
    DynamicBand,
    LogClip,
    NoClip,
    PpoDual,
    PpoMin,
    SoftGate,
    TwoSided,
)
from paribus.recipe.factors.correction import (
    Correction,
    GeometricMask,
    NoCorrection,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
)
from paribus.recipe.factors.filter import Drop, Filter, GroupMetric, NoFilter, Refill, RefillAsync
from paribus.recipe.factors.kl import FixedReference, Kl, KlInLoss, KlInLossWeighted, KlInReward, NoKl, SyncedReference
from paribus.recipe.factors.length import Length, NoLengthRule, SoftOverlong
from paribus.recipe.factors.level import Count, Fraction, Level, NonNegative, Positive
from paribus.recipe.factors.loss import Loss, PairDpo, PolicyGradient
from paribus.recipe.factors.ratio import (
    GeometricClipped,
    NoRatio,
    Ratio,
    SequenceGeometric,
    SequenceGeometricToken,
    SequenceProduct,
    TokenRatio,
)
from paribus.recipe.factors.reward import Reward, RewardFunction, Weights
from paribus.recipe.factors.scale import (
    BatchStdCentred,
    BatchStdRaw,
    BatchWhiten,
    GroupStd,
    HistorySmooth,
    NoScale,
    Scale,
)
from paribus.recipe.factors.schedule import Joint, Lopti, Schedule
from paribus.recipe.factors.token_weight import AdvantageReweight, RouterShift, TokenWeight, TopEntropy, UniformWeight

__all__ = [
    "AdvantageReweight",
    "Aggregation",
    "Auxiliary",
    "Baseline",
    "BatchMean",
    "BatchStdCentred",
    "BatchStdRaw",
    "BatchWhiten",
    "CappedWeight",
    "Clip",
    "ConstantLength",
    "Correction",
    "Count",
    "CriticGae",
    "Drop",
    "DynamicBand",
    "Filter",
    "FixedLambda",
    "FixedReference",
    "Fraction",
    "GeometricClipped",
    "GeometricMask",
    "GroupLeaveOneOut",
    "GroupMean",
    "GroupMetric",
    "GroupStd",
    "History",
    "HistorySmooth",
    "Joint",
    "Kl",
    "KlInLoss",
    "KlInLossWeighted",
    "KlInReward",
    "Length",
    "LengthAdaptiveLambda",
    "Level",
    "LogClip",
    "Lopti",
    "Loss",
    "NoBaseline",
    "NoClip",
    "NoCorrection",
    "NoFilter",
    "NoKl",
    "NoLengthRule",
    "NoRatio",
    "NoScale",
    "NonNegative",
    "PairDpo",
    "PolicyGradient",
    "Positive",
    "PpoDual",
    "PpoMin",
    "Ratio",
    "Refill",
    "RefillAsync",
    "Reward",
    "RewardFunction",
    "RouterShift",
    "Scale",
    "Schedule",
    "SequenceGeometric",
    "SequenceGeometricToken",
    "SequenceMask",
    "SequenceMean",
    "SequenceMeanSum",
    "SequenceProduct",
    "SequenceSum",
    "SequenceTruncate",
    "SoftGate",
    "SoftOverlong",
    "SyncedReference",
    "TokenBatch",
    "TokenGroup",
    "TokenMask",
    "TokenMicro",
    "TokenRatio",
    "TokenTruncate",
    "TokenWeight",
    "TopEntropy",
    "TwoSided",
    "UniformWeight",
    "ValueLoss",
    "Weights",
]
