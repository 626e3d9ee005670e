"""User values to stored bytes and back."""
