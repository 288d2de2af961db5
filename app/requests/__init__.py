"""What clients may send: bodies, their fields and limits. pydantic stops here."""
