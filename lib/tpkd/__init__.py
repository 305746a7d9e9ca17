"""Task-preserving distillation (Yuan & Tao): margins, blocking, transfer cost, safe directions."""

from lib.tpkd.blocking import (
    blocked_confidence_limit,
    blocked_log_odds_limit,
    is_blocked,
    label_only_kl,
    label_only_optimum,
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
from lib.tpkd.transfer import (
    minimum_confidence,
    minimum_log_odds,
    safe_path,
    transfer_cost,
)

__all__ = [
    "bernoulli_kl",
    "blocked_confidence_limit",
    "blocked_log_odds_limit",
    "conditional_kl",
    "conditional_log_probs",
    "frontier_optimum",
    "full_kl",
    "is_blocked",
    "label_only_kl",
    "label_only_optimum",
    "log_odds",
    "margins",
    "minimum_confidence",
    "minimum_log_odds",
    "safe_path",
    "transfer_cost",
    "transfer_frontier",
    "weighted_label_loss",
]
