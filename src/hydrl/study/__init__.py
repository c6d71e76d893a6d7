"""Many runs: sweeps, search, report, results. Starts ``train.py`` and reads folders; never imports PyTorch.

Imports ``config`` and what of ``run`` is about folders and the screen.
"""
