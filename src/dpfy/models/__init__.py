"""Small networks for the reference data sets, and settings that suit them."""

from dpfy.models.batchnorm import FrozenBatchNorm, PrivateBatchNorm, fit_statistics
from dpfy.models.defaults import default_model, recommended
from dpfy.models.networks import MeanEmbedding, Normalize, cifar_cnn, digits_mlp, mlp, mnist_cnn, review_classifier
from dpfy.models.residual import PreactivationBlock, wide_resnet

__all__ = ["FrozenBatchNorm", "MeanEmbedding", "Normalize", "PreactivationBlock", "PrivateBatchNorm", "cifar_cnn",
           "default_model", "digits_mlp", "fit_statistics", "mlp", "mnist_cnn", "recommended", "review_classifier",
           "wide_resnet"]
