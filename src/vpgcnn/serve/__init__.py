"""The inspector: a page on localhost to turn an image and watch the level, and the API behind it."""
