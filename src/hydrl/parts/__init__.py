"""What a ``_target_`` names: environments, networks, experience, losses, transforms.

Imports no other room. Environments, networks and experience know each other by specs only.
"""
