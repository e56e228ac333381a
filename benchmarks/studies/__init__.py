"""What the algorithms do, measured on a tiny model with a gold reward that is known exactly: `make results`."""
