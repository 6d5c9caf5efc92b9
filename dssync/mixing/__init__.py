"""What schedules do to disagreement, and what they cost on a network."""

from dssync.mixing.bound import Consensus, Problem, consensus_of, gradient_bound, measure_consensus, steps_to_accuracy
from dssync.mixing.choice import choose_domains
from dssync.mixing.network import NetworkCost, RoundCost
from dssync.mixing.operator import Mixing, RoundOperator, expected_eigenvalue
from dssync.mixing.plan import Plan, Row, make_plan

__all__ = [
    "Consensus",
    "Mixing",
    "NetworkCost",
    "Plan",
    "Problem",
    "RoundCost",
    "RoundOperator",
    "Row",
    "choose_domains",
    "consensus_of",
    "expected_eigenvalue",
    "gradient_bound",
    "make_plan",
    "measure_consensus",
    "steps_to_accuracy",
]
