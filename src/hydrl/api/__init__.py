"""Training from Python, by the path of the command line: ``hydrl.train`` and ``Run``."""

import logging
import sys
import warnings

if "ipykernel" in sys.modules:  # TorchRL imports Ray, which asks a notebook for ipywidgets twice
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        import torchrl.data  # noqa: F401
