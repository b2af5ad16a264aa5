"""What stands between this package and MLX on a machine: a fast BLAS, and the kernels that MLX compiles."""
