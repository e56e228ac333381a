"""Our losses, log-probabilities and gradients against TRL's own code. Run by `make parity`; the product imports no TRL."""
