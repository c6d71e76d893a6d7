"""hydrl: Hydra configs choose the parts, TorchRL does the reinforcement learning."""

__version__ = "0.1.0"
