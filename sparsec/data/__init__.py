"""Texts that ship with the compiler: the built-in document and the skeleton of a method."""
