"""Real coordinates for the bridge problems: single entries, or the real and imaginary parts of
Fourier coefficients.

Both domains become one problem over real vectors v whose entries come in groups of one or two:
the penalty is a weighted sum of p-th powers of the groups' lengths, and a margin is linear in v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lib.implicit.spectrum import multiplicity, signal, spectrum


@dataclass(frozen=True)
class Groups:
    """A predictor's coordinates in one domain, some groups of them kept.

    Attributes:
        dimension: D.
        domain: "signal" or "fourier".
        kept: (G,) indices of the groups kept: entries, or coefficients of the half spectrum.
        group: (m,) for every real coordinate, which of the kept groups it belongs to.
        weight: (G,) how many of the D coefficients each kept group stands for.
        imaginary: (m,) whether a coordinate is an imaginary part.
    """

    dimension: int
    domain: str
    kept: np.ndarray
    group: np.ndarray
    weight: np.ndarray
    imaginary: np.ndarray

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        """The coordinates (..., m) of real vectors (..., D)."""
        if self.domain == "signal":
            return vectors[..., self.kept]
        coefficients = spectrum(torch.from_numpy(np.asarray(vectors))).numpy()[..., self.kept]
        coefficients = coefficients[..., self.group]
        return np.where(self.imaginary, coefficients.imag, coefficients.real)

    def vector(self, coordinates: np.ndarray) -> np.ndarray:
        """The real vector (D,) with these coordinates (m,) and zeros elsewhere."""
        if self.domain == "signal":
            result = np.zeros(self.dimension)
            result[self.kept] = coordinates
            return result
        coefficients = np.zeros(self.dimension // 2 + 1, dtype=np.complex128)
        units = np.where(self.imaginary, 1j, 1.0)
        np.add.at(coefficients, self.kept[self.group], units * coordinates)
        return signal(torch.from_numpy(coefficients), self.dimension).numpy()

    def lengths(self, coordinates: np.ndarray) -> np.ndarray:
        """The length of every group, (G,), of coordinates (m,)."""
        return np.sqrt(np.bincount(self.group, coordinates**2, minlength=len(self.kept)))


def choose_groups(dimension: int, domain: str, kept: np.ndarray | None = None) -> Groups:
    """Return the coordinates of a domain, all of them or those of some groups.

    Args:
        dimension: D >= 1.
        domain: "signal" or "fourier".
        kept: increasing indices of the groups to keep; None for all.

    Returns:
        The coordinates.

    Example:
        A real vector of dimension 4 has two real Fourier coefficients and a pair of complex ones.

        >>> groups = choose_groups(4, "fourier")
        >>> groups.group.tolist(), groups.weight.tolist()
        ([0, 1, 2, 1], [1.0, 2.0, 1.0])
    """
    if domain == "signal":
        kept = np.arange(dimension) if kept is None else np.asarray(kept)
        group, weight = np.arange(len(kept)), np.ones(len(kept))
        return Groups(dimension, domain, kept, group, weight, np.zeros(len(kept), dtype=bool))
    twice = multiplicity(dimension).numpy()
    kept = np.arange(len(twice)) if kept is None else np.asarray(kept)
    weight = twice[kept]
    real = np.arange(len(kept))
    paired = real[weight == 2]
    imaginary = np.repeat([False, True], [len(real), len(paired)])
    return Groups(dimension, domain, kept, np.concatenate([real, paired]), weight, imaginary)
