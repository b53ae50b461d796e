"""Triton kernels for CUDA. Importing a module with a kernel imports triton; nothing else may do so."""
