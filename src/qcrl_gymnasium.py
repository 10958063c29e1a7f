"""Lets `gymnasium.make("qcrl/...")` work without an import of qcrl.

`qcrl_gymnasium.pth` imports this at every start of Python, so it must stay small: all it does is wait until
somebody imports Gymnasium, which looks for no plugins itself, and then register the environments.
"""

import sys


class RegisterAfterGymnasium:
    """An import finder that finds nothing itself; it runs `qcrl.envs.gym` once `gymnasium` is complete."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "gymnasium":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                try:
                    import qcrl.envs.gym  # noqa: F401
                except ImportError as error:
                    import warnings

                    warnings.warn(f"the qcrl environments are not available: {error}", stacklevel=2)

            spec.loader.exec_module = execute_and_register
        return spec


if "gymnasium" not in sys.modules:
    sys.meta_path.insert(0, RegisterAfterGymnasium)
