"""An object store as boto3 reaches it."""
