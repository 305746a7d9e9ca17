"""Implicit bias of linear networks (Gunasekar et al.): which separator training converges to."""

from lib.implicit.alignment import misalignment, slackness
from lib.implicit.data import WORKED_EXAMPLES, random_separable, worked_example
from lib.implicit.descent import descend
from lib.implicit.flow import log_time_flow
from lib.implicit.homogeneous import HomogeneousNetwork
from lib.implicit.losses import example_weights, log_loss
from lib.implicit.max_margin import MaxMargin, duality_gap, max_margin, solve_max_margin
from lib.implicit.networks import ConvolutionalNetwork, DenseNetwork, DiagonalNetwork
from lib.implicit.spectrum import (
    bridge_penalty,
    direction_angle,
    dual_norm_value,
    multiplicity,
    norm_value,
    signal,
    spectrum,
)
from lib.implicit.stationary import polish_stationary, stability_numbers, stationarity
from lib.implicit.training import Trajectory, cosine_weights
from lib.implicit.vertices import bridge_minimum, margin_vertices

__all__ = [
    "WORKED_EXAMPLES",
    "ConvolutionalNetwork",
    "DenseNetwork",
    "DiagonalNetwork",
    "HomogeneousNetwork",
    "MaxMargin",
    "Trajectory",
    "bridge_minimum",
    "bridge_penalty",
    "cosine_weights",
    "descend",
    "direction_angle",
    "dual_norm_value",
    "duality_gap",
    "example_weights",
    "log_loss",
    "log_time_flow",
    "margin_vertices",
    "max_margin",
    "misalignment",
    "multiplicity",
    "norm_value",
    "polish_stationary",
    "random_separable",
    "signal",
    "slackness",
    "solve_max_margin",
    "spectrum",
    "stability_numbers",
    "stationarity",
    "worked_example",
]
