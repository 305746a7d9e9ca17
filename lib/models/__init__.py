"""Networks that the chapters train."""

from lib.models.networks import convolutional, fully_connected

__all__ = ["convolutional", "fully_connected"]
