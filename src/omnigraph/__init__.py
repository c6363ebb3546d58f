"""Omnigraph: a typed property graph on Lance and Spark."""
