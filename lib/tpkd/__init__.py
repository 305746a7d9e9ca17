"""Task-preserving distillation (Yuan & Tao): margins, blocking, transfer cost, safe directions."""

from lib.tpkd.blocking import (
    blocked_confidence_limit,
    blocked_log_odds_limit,
    is_blocked,
    label_only_kl,
    label_only_optimum,
)
from lib.tpkd.bounds import (
    alignment_bound,
    alignment_extremal,
    angle_spectrum_bound,
    compensation_bounds,
    distortion_limits,
    potential,
    potential_gradient,
    retention_bound,
    weighted_descent_constant,
    weighted_step_limit,
)
from lib.tpkd.directions import (
    Directions,
    conditional_component,
    confidence_direction,
    directions,
    surrogate_loss,
)
from lib.tpkd.dynamics import (
    RULES,
    OutputPath,
    run_output_steps,
    update_direction,
)
from lib.tpkd.frontier import (
    frontier_optimum,
    transfer_frontier,
)
from lib.tpkd.geometry import (
    bernoulli_kl,
    conditional_kl,
    conditional_log_probs,
    full_kl,
    log_odds,
    margins,
    weighted_label_loss,
)
from lib.tpkd.head import (
    exact_head_step,
)
from lib.tpkd.imitation import (
    safe_imitation,
)
from lib.tpkd.projection import (
    project_onto_safe_cone,
)
from lib.tpkd.spectrum import (
    output_vjp,
    restricted_spectrum,
)
from lib.tpkd.transfer import (
    minimum_confidence,
    minimum_log_odds,
    safe_path,
    transfer_cost,
)

__all__ = [
    "RULES",
    "Directions",
    "OutputPath",
    "alignment_bound",
    "alignment_extremal",
    "angle_spectrum_bound",
    "bernoulli_kl",
    "blocked_confidence_limit",
    "blocked_log_odds_limit",
    "compensation_bounds",
    "conditional_component",
    "conditional_kl",
    "conditional_log_probs",
    "confidence_direction",
    "directions",
    "distortion_limits",
    "exact_head_step",
    "frontier_optimum",
    "full_kl",
    "is_blocked",
    "label_only_kl",
    "label_only_optimum",
    "log_odds",
    "margins",
    "minimum_confidence",
    "minimum_log_odds",
    "output_vjp",
    "potential",
    "potential_gradient",
    "project_onto_safe_cone",
    "restricted_spectrum",
    "retention_bound",
    "run_output_steps",
    "safe_imitation",
    "safe_path",
    "surrogate_loss",
    "transfer_cost",
    "transfer_frontier",
    "update_direction",
    "weighted_descent_constant",
    "weighted_label_loss",
    "weighted_step_limit",
]
