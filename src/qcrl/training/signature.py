"""What `help` and editors show of a function that hands its options on: the arguments of the one that takes them."""

import inspect
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def with_arguments_of(other: Callable[..., object]) -> Callable[[Function], Function]:
    """Signature and docstring of the decorated function, with the arguments of `other` instead of its `**options`."""

    def decorate(function: Function) -> Function:
        own, further = (inspect.signature(each).parameters for each in (function, other))
        kept = [each for each in own.values() if each.kind is not each.VAR_KEYWORD]
        kept += [each for each in further.values() if each.name not in own]  # the last takes all other names
        function.__signature__ = inspect.signature(function).replace(parameters=kept)  # type: ignore[attr-defined]
        arguments = (inspect.getdoc(other) or "").partition("\n\n")[2]
        function.__doc__ = f"{inspect.getdoc(function)}\n{arguments}"
        return function

    return decorate
