"""What clients get: samples as they arrive, as events or as one object."""
