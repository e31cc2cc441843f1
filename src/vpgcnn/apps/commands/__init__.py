"""One file for each command of `vpgcnn`: reads arguments, calls the library, prints."""
