"""The parts of the disk tier; ``cache_tiers.disk_tier`` is what others use."""
