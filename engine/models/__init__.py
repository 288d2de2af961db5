"""Model definitions. They get batches, KV and attention as arguments; they know no request."""
