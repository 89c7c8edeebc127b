"""``scalebench doctor``."""

import json
from pathlib import Path

import click

from scalebench.cli.view import emit, emit_for_terminal, emit_json
from scalebench.errors import UsageError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option("--links", is_flag=True, help="Which wires NCCL takes between this machine's GPUs.")
@click.option(
    "--nccl-log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Which wires NCCL took, from its own log of any job; may be repeated.",
)
def doctor(as_json: bool, links: bool, logs: tuple[Path, ...]) -> None:
    """Show what this machine has, what would disturb a measurement, and how to fix it.

    With --links or --nccl-log, show the wires alone, and what to set for faster ones.
    """
    if links and logs:
        raise UsageError("--links looks at this machine, --nccl-log at a log: give one of them.")
    if links or logs:
        from scalebench.report.tables.wires import render_wires
        from scalebench.session.machine.wires import wires_here, wires_of_logs

        wires = wires_here() if links else wires_of_logs(logs)
        if as_json:
            emit_json(wires)
        else:
            emit_for_terminal(lambda *terminal: render_wires(wires, *terminal))
        return
    from scalebench import machine
    from scalebench.cli.text_tables import render_diagnosis
    from scalebench.launch.lab import try_lab
    from scalebench.session.machine.diagnosis import diagnose, read_conditions
    from scalebench.session.machine.survey import survey_machine

    survey = survey_machine(fresh=True, rates=True)
    facts = machine.fingerprint(survey)
    conditions = read_conditions() | {"virtual_hosts": vars(try_lab())}
    findings = diagnose(facts, conditions)
    if as_json:
        answer = {"facts": facts, "conditions": conditions, "findings": [vars(f) for f in findings]}
        emit(json.dumps(answer, indent=1))
    else:
        emit(render_diagnosis(facts, conditions, findings))
