"""Generated from include/trainmaster/v1 by `integration/ray/generate`."""
