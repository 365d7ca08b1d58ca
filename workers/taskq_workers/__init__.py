"""Workers: they claim, run and settle jobs."""
