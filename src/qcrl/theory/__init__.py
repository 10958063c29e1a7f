"""The paper's theory as numbers, in float64: tabular CMDPs and their exact cost distributions, every theorem with both
sides and measured constants, exact optima, and rate functions. docs/theory.md is the tour."""

from qcrl.theory.analysis import Analysis, Constants, analyse
from qcrl.theory.budget import Planned, evaluate_policy, solve_budget, solve_timed
from qcrl.theory.cmdp import CMDP, moments, occupancy, random_cmdp, random_policy, simulate, softmax, value
from qcrl.theory.density import Density, densities, density
from qcrl.theory.gradient import compare, exact_gradients, formulas
from qcrl.theory.grid import Bracket, bracket
from qcrl.theory.large_deviations import TailFit, fit_tails, rate_function, state_action_chain
from qcrl.theory.solver import Solution, evaluate_stationary, solve, solve_stationary
from qcrl.theory.theorems import (
    Check,
    cdf_form,
    check_all,
    distorted_value,
    improvement,
    kl,
    lipschitz,
    policy_dependent_form,
    policy_independent_form,
    quantile_backup,
    td_relation,
    weight_mean,
)

__all__ = [
    "CMDP",
    "Analysis",
    "Bracket",
    "Check",
    "Constants",
    "Density",
    "Planned",
    "Solution",
    "TailFit",
    "analyse",
    "bracket",
    "cdf_form",
    "check_all",
    "compare",
    "densities",
    "density",
    "distorted_value",
    "evaluate_policy",
    "evaluate_stationary",
    "exact_gradients",
    "fit_tails",
    "formulas",
    "improvement",
    "kl",
    "lipschitz",
    "moments",
    "occupancy",
    "policy_dependent_form",
    "policy_independent_form",
    "quantile_backup",
    "random_cmdp",
    "random_policy",
    "rate_function",
    "simulate",
    "softmax",
    "solve",
    "solve_budget",
    "solve_stationary",
    "solve_timed",
    "state_action_chain",
    "td_relation",
    "value",
    "weight_mean",
]
