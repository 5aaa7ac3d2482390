"""Proves, with real tensors, why a transformer works, and shows where a model does not."""

__version__ = "0.1.0"
