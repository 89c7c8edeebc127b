"""From what the user asked to the list of cells: every default filled in, nothing run yet."""

from scalebench.session.plan.make import check_names, make_plan
from scalebench.session.plan.request import Machine, Plan, Request

__all__ = ["Machine", "Plan", "Request", "check_names", "make_plan"]
