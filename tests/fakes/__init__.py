"""Helpers that tests import as ``from tests.fakes import …``: small environments, losses and mistakes."""
