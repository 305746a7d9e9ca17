from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.implicit import (
    bridge_penalty,
    direction_angle,
    dual_norm_value,
    multiplicity,
    norm_value,
    signal,
    spectrum,
)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_half_spectrum_is_the_unitary_transform(d, seed):
    v = gaussian(seed, d)
    full = np.fft.fft(v.numpy()) / np.sqrt(d)
    assert np.allclose(spectrum(v).numpy(), full[: d // 2 + 1], atol=1e-13)
    assert torch.allclose(signal(spectrum(v), d), v)
    assert float(multiplicity(d).sum()) == d
    assert float(norm_value(v, "fourier-l1")) == pytest.approx(np.abs(full).sum())
    assert float(bridge_penalty(v, 2 / 3, "fourier")) == pytest.approx(
        (np.abs(full) ** (2 / 3)).sum()
    )


@given(st.sampled_from(["l2", "l1", "fourier-l1"]), st.integers(1, 9), st.integers(0, 1000))
def test_dual_norm_bounds_inner_products_and_is_attained(norm, d, seed):
    z, b = gaussian(seed, 2, d)
    assert float(z @ b) <= float(dual_norm_value(z, norm) * norm_value(b, norm)) + 1e-12
    if norm == "l2":
        best = z
    elif norm == "l1":
        best = torch.where(z.abs() == z.abs().max(), z, 0.0)
    else:
        s = spectrum(z)
        best = signal(torch.where(s.abs() >= s.abs().max() * (1 - 1e-12), s, 0.0), d)
    ratio = float(z @ best / (dual_norm_value(z, norm) * norm_value(best, norm)))
    assert ratio == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("theta", [1e-14, 1e-9, 0.3, 3.0, torch.pi])
def test_tiny_angles_keep_their_digits(theta):
    u = torch.tensor([1.0, 0.0], dtype=torch.float64)
    v = 7 * torch.tensor([np.cos(theta), np.sin(theta)], dtype=torch.float64)
    assert float(direction_angle(u, v)) == pytest.approx(float(theta), rel=1e-9)


def test_errors_name_what_is_allowed():
    with pytest.raises(ValueError, match="norm must be one of 'l2', 'l1', 'fourier-l1', got 'l3'"):
        norm_value(torch.ones(2), "l3")
    with pytest.raises(ValueError, match="power must be a finite number > 0 and <= 2, got 3"):
        bridge_penalty(torch.ones(2), 3, "signal")
    with pytest.raises(ValueError, match="domain must be one of"):
        bridge_penalty(torch.ones(2), 1, "time")
    with pytest.raises(ValueError, match="predictor must have shape"):
        direction_angle(torch.ones(2), torch.ones(3))
