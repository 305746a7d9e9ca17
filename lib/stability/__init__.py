"""Edge of stability (Cohen et al.): sharpness, and gradient descent beside it."""

from lib.stability.crossing import Onset, QuadraticModelDescent, onset, quadratic_model_descent
from lib.stability.descent import Descent, descend
from lib.stability.flow import BesideFlow, Flow, descend_beside_flow, flow
from lib.stability.hessian import (
    Sharpness,
    SharpnessError,
    dense_hessian,
    hessian_vector_product,
    sharpness,
)
from lib.stability.phases import loss_rises, plateau
from lib.stability.quadratic import growth_factor, quadratic_descent, stability_threshold
from lib.stability.records import CheckpointError
from lib.stability.toy import (
    product_descent,
    product_flow_sharpness,
    product_hessian,
    product_loss,
    product_sharpness,
    self_stabilisation,
)

__all__ = [
    "BesideFlow",
    "CheckpointError",
    "Descent",
    "Flow",
    "Onset",
    "QuadraticModelDescent",
    "Sharpness",
    "SharpnessError",
    "dense_hessian",
    "descend",
    "descend_beside_flow",
    "flow",
    "growth_factor",
    "hessian_vector_product",
    "loss_rises",
    "onset",
    "plateau",
    "product_descent",
    "product_flow_sharpness",
    "product_hessian",
    "product_loss",
    "product_sharpness",
    "quadratic_descent",
    "quadratic_model_descent",
    "self_stabilisation",
    "sharpness",
    "stability_threshold",
]
