"""Triton kernels for CUDA. Importing a module of this package imports triton; nothing else may do so."""
