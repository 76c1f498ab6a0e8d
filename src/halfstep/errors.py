"""Errors that a person should read as a sentence, and what becomes of a run that ends with one."""


class Unsupported(Exception):
    """This machine, this environment or this combination cannot do what was asked; the message says why."""


class Invalid(Exception):
    """It would run, but not as asked; the message says how it would differ."""


def describe(error: BaseException) -> str:
    """The first line of an error, with its type where that says more."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def classify(error: Exception) -> tuple[str, str]:
    """The status and reason of a run that ended with this error."""
    import torch  # not by everyone who only raises these

    text = str(error)
    if isinstance(error, Unsupported):
        return "unsupported", text
    if isinstance(error, Invalid):
        return "invalid", text
    if isinstance(error, MemoryError):
        return "out_of_memory", "the host's memory did not suffice"
    exhausted = "out of memory" in text.lower() or "CUBLAS_STATUS_ALLOC_FAILED" in text
    if isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and exhausted):
        return "out_of_memory", describe(error)
    return "failed", describe(error)
