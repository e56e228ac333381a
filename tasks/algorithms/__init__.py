"""Pure functions of tensors and numbers: no files, no config, no logging, no random state without a generator."""
