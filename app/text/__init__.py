"""Messages and texts to token ids, and token ids back to text. Knows no HTTP and no engines."""
