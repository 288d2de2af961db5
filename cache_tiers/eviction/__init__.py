"""What leaves a tier first. Knows blocks by number; moves nothing."""
