"""What a cluster costs by the hour, by the rows that make it up, and by the token."""
