"""One module for each published figure or table; each is a command."""
