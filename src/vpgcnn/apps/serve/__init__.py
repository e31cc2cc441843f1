"""The inspector: a page on localhost on which you move an image and watch the levels, and the API of that page."""
