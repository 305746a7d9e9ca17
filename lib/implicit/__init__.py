"""Implicit bias of linear networks (Gunasekar et al.): which separator training converges to."""
