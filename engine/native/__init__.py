"""The decoder's step as one call of compiled code, for CPUs with AVX-512."""
