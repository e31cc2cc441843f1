"""Training that can be stopped anywhere and goes on exactly where it was."""
