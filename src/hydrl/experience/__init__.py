"""Collectors, replay buffers and minibatches."""
