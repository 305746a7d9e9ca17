"""Distillation: every method of Table 4 of Yuan & Tao and every control of Table 5."""

from lib.distill.dto import DtoWeights, dto_weights, layer_feature_loss
from lib.distill.dual_head import align_gradients
from lib.distill.methods import OBJECTIVES, Objective
from lib.distill.objectives import combine_gradients, objective_loss, objective_losses

__all__ = [
    "OBJECTIVES",
    "DtoWeights",
    "Objective",
    "align_gradients",
    "combine_gradients",
    "dto_weights",
    "layer_feature_loss",
    "objective_loss",
    "objective_losses",
]
