"""Layers that are sparse in storage, for anyone's training loop; nothing here knows of federations."""

from fedmef.nn.batchnorm import BatchNorm1d, BatchNorm2d, guard_batchnorm
from fedmef.nn.conversion import Conversion, conversion_of
from fedmef.nn.convolution import CachePolicy, Geometry, sparse_conv2d
from fedmef.nn.growth import growth_scores
from fedmef.nn.layers import SparseConv2d, SparseLinear, sparse_layers
from fedmef.nn.normalization import FilterNormalization
from fedmef.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fedmef.nn.relu import LeakyReLU, ReLU, ReLU6
from fedmef.nn.signal import check_signal
from fedmef.nn.sparsify import dense_by_default, sparsify
from fedmef.sparsity.growth import GrowthScores

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "CachePolicy",
    "Conversion",
    "FilterNormalization",
    "Geometry",
    "GrowthScores",
    "LeakyReLU",
    "MaxPool2d",
    "ReLU",
    "ReLU6",
    "SparseConv2d",
    "SparseLinear",
    "check_signal",
    "conversion_of",
    "dense_by_default",
    "growth_scores",
    "guard_batchnorm",
    "sparse_conv2d",
    "sparse_layers",
    "sparsify",
]
