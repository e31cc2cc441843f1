"""Is a classifier sensitive to rotation or hue, for which images, and is that right? Of any classifier."""
