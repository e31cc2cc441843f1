"""Training that can stop anywhere and continues exactly where it stopped."""
