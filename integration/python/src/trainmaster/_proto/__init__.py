"""Generated from include/trainmaster/v1 by `integration/python/generate`."""
