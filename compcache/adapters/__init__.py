"""Adapters: the only code that may touch an engine."""
