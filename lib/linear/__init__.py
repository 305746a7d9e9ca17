"""Linear distillation (Phuong & Lampert): tasks, student limits, flows, risk bounds, monotonicity."""
