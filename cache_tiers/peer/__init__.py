"""What both sides of a connection between two node caches need."""
