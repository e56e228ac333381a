"""Our losses, log-probabilities and gradients against TRL's own code: `make parity`. The product imports no TRL."""
