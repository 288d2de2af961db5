"""KV blocks and weights outside the accelerator. Knows neither requests nor model maths."""
