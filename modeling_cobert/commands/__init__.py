"""The commands of `cobert`, a module each: a docstring that is the help, `ARGUMENTS` and `main`."""
