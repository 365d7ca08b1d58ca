"""Log bytes to Arrow batches, with numpy and pyarrow alone."""
