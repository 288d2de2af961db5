"""The models of one node: brought, staged, demoted, and handed to the ranks that start there."""
