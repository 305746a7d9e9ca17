"""Edge of stability (Cohen et al.): sharpness, and gradient descent beside it."""

from lib.stability.hessian import (
    Sharpness,
    SharpnessError,
    dense_hessian,
    hessian_vector_product,
    sharpness,
)

__all__ = [
    "Sharpness",
    "SharpnessError",
    "dense_hessian",
    "hessian_vector_product",
    "sharpness",
]
