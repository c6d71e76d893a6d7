"""Many runs: sweeps, search, reports. Starts ``train.py`` and reads run folders; never imports PyTorch."""
