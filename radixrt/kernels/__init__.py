"""C++ kernels for the CPU, and the module that compiles them."""
