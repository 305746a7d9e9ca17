"""Edge of stability (Cohen et al.): sharpness, and gradient descent beside it."""
