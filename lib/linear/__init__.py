"""Linear distillation (Phuong & Lampert): tasks, student limits, flows, bounds, monotonicity."""

from lib.linear.bounds import (
    approximate_risk_bound,
    lemma14_angle,
    margin_risk_bound,
    polynomial_risk_bound,
    risk_bound,
    sharp_risk_bound,
    tight_angle,
)
from lib.linear.convexity import (
    gradient_dominance,
    strong_convexity,
    sublevel_interval,
)
from lib.linear.deep_limit import (
    deep_student_limit,
    landing_distance,
    landing_distance_bound,
    landing_norm,
    landing_norm_bound,
)
from lib.linear.factors import (
    balanced_factors,
    balancedness,
    end_to_end,
    initial_norm_limit,
)
from lib.linear.flows import (
    deep_gradient_flow,
    end_to_end_flow,
    gradient_flow,
    hard_target_flow,
)
from lib.linear.geometry import (
    angle,
    project_onto_span,
)
from lib.linear.growth import (
    OrthogonalGrowth,
    measured_rate,
    orthogonal_growth,
)
from lib.linear.limits import (
    hard_margin_residual,
    hard_target_limit,
    perturbed_student,
    student_limit,
)
from lib.linear.loss import (
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_hessian,
    logits,
    soft_labels,
)
from lib.linear.monotone import (
    Monotonicity,
    monotonicity,
)
from lib.linear.risk import (
    expected_risk,
    transfer_risk,
)
from lib.linear.saddle import (
    saddle_curve,
)
from lib.linear.tasks import (
    BandAngleTask,
    MarginAngleTask,
    PlanarAngleTask,
    PolynomialAngleTask,
    empirical_angle_tail,
    figure1_task,
)
from lib.linear.teacher import (
    fit_logistic_teacher,
)

__all__ = [
    "BandAngleTask",
    "MarginAngleTask",
    "Monotonicity",
    "OrthogonalGrowth",
    "PlanarAngleTask",
    "PolynomialAngleTask",
    "angle",
    "approximate_risk_bound",
    "balanced_factors",
    "balancedness",
    "cross_entropy",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "deep_gradient_flow",
    "deep_student_limit",
    "empirical_angle_tail",
    "end_to_end",
    "end_to_end_flow",
    "expected_risk",
    "figure1_task",
    "fit_logistic_teacher",
    "gradient_dominance",
    "gradient_flow",
    "hard_margin_residual",
    "hard_target_flow",
    "hard_target_limit",
    "initial_norm_limit",
    "landing_distance",
    "landing_distance_bound",
    "landing_norm",
    "landing_norm_bound",
    "lemma14_angle",
    "logits",
    "margin_risk_bound",
    "measured_rate",
    "monotonicity",
    "orthogonal_growth",
    "perturbed_student",
    "polynomial_risk_bound",
    "project_onto_span",
    "risk_bound",
    "saddle_curve",
    "sharp_risk_bound",
    "soft_labels",
    "strong_convexity",
    "student_limit",
    "sublevel_interval",
    "tight_angle",
    "transfer_risk",
]
