"""Numbers at the door: what is checked of all options alike, before any work."""

# What a C program can count to: beyond it, libraries fail in ways of their own, or take another number.
HIGHEST = 2**31 - 1
# More than any machine has use for: each takes memory of its own before it has work.
MOST_THREADS = 1024


def check_numbers(options: object, least: int, *names: str, most: int = HIGHEST) -> None:
    """
    The options of these names, where they are given, must be numbers from `least` to `most`.

    Example:

    ```python
    >>> from types import SimpleNamespace
    >>> check_numbers(SimpleNamespace(k=0), 1, "k")
    Traceback (most recent call last):
    ValueError: --k must be at least 1, got 0
    ```
    """
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        if not value >= least:  # so that what is not a number is refused too
            raise ValueError(f"--{name} must be at least {least}, got {value}")
        if value > most:
            raise ValueError(f"--{name} must be at most {most}, got {value}")
