"""What a run reports: metrics, loggers, console, curves, pages."""
