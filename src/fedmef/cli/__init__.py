"""The command line, thin: one file a command, which reads its arguments, calls the library and prints."""
