"""What TorchRL's losses need around them: the builder, and a few losses that TorchRL does not have."""
