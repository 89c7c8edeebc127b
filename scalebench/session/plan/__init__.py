"""From what the user asked to the list of cells: every default filled in, nothing run yet."""

from scalebench.session.plan.cases import Machine, Plan, Request
from scalebench.session.plan.make import check_names, make_plan

__all__ = ["Machine", "Plan", "Request", "check_names", "make_plan"]
