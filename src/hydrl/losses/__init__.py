"""Losses: the builder of TorchRL's, and a few that TorchRL lacks or implements differently."""
