"""What do the collectives cost here, at which size and number of ranks; are their results right?"""

from scalebench import Collectives, Suite

SUITE = Suite(
    name="collectives",
    question="What does each collective cost here, and which all-reduce is fastest at which size?",
    collectives=Collectives(
        algorithms=("ring", "halving-doubling", "tree", "double-tree"),
    ),
)
