"""Task-preserving distillation (Yuan & Tao): margins, blocking, transfer cost, safe directions."""

__all__: list[str] = []
