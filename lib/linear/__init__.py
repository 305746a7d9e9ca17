"""Linear distillation (Phuong & Lampert): tasks, student limits, flows, bounds, monotonicity."""
