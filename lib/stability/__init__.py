"""Edge of stability (Cohen et al.): sharpness, and gradient descent beside it."""

from lib.stability.descent import Descent, descend
from lib.stability.hessian import (
    Sharpness,
    SharpnessError,
    dense_hessian,
    hessian_vector_product,
    sharpness,
)
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
    "CheckpointError",
    "Descent",
    "Sharpness",
    "SharpnessError",
    "dense_hessian",
    "descend",
    "growth_factor",
    "hessian_vector_product",
    "product_descent",
    "product_flow_sharpness",
    "product_hessian",
    "product_loss",
    "product_sharpness",
    "quadratic_descent",
    "self_stabilisation",
    "sharpness",
    "stability_threshold",
]
