"""Small networks for the reference data sets, and settings that suit them."""

from dpfy.models.augmentation import AugmentedData, augmented, crop_and_flip, mean_over_copies
from dpfy.models.batchnorm import FrozenBatchNorm, PrivateBatchNorm, fit_statistics
from dpfy.models.defaults import default_model, recommended
from dpfy.models.heads import StandardizeChannels, cnn_head, linear_head
from dpfy.models.networks import (
    FrozenEmbedding,
    LastStates,
    MeanEmbedding,
    Normalize,
    TemperedSigmoid,
    cifar_cnn,
    digits_mlp,
    mlp,
    mnist_cnn,
    review_classifier,
    review_lstm,
)
from dpfy.models.residual import PreactivationBlock, StandardizedConv2d, wide_resnet
from dpfy.models.scattering import Scattering2d, scattering_features

__all__ = [
    "AugmentedData",
    "FrozenBatchNorm",
    "FrozenEmbedding",
    "LastStates",
    "MeanEmbedding",
    "Normalize",
    "PreactivationBlock",
    "PrivateBatchNorm",
    "Scattering2d",
    "StandardizeChannels",
    "StandardizedConv2d",
    "TemperedSigmoid",
    "augmented",
    "cifar_cnn",
    "cnn_head",
    "crop_and_flip",
    "default_model",
    "digits_mlp",
    "fit_statistics",
    "linear_head",
    "mean_over_copies",
    "mlp",
    "mnist_cnn",
    "recommended",
    "review_classifier",
    "review_lstm",
    "scattering_features",
    "wide_resnet",
]
