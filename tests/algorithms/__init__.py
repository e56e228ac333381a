"""Each quantity: golden value, identity, gradient, garbage in masked slots, micro-batches."""
