"""What rlx asks of the host that it runs on: files, locks, threads, progress, the cache of kernels on disk."""
