"""Programs that measure radixrt and its peers. Run them as modules, for example `python -m benchmarks.serving`."""
