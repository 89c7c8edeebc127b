"""``scalebench doctor``."""

import json

import click

from scalebench.cli.view import emit


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
def doctor(as_json: bool) -> None:
    """Show what this machine has, what would disturb a measurement, and how to fix it."""
    from scalebench import machine
    from scalebench.cli.text_tables import render_diagnosis
    from scalebench.launch.lab import try_lab
    from scalebench.session.diagnosis import diagnose, read_conditions
    from scalebench.session.survey import survey_machine

    survey = survey_machine(fresh=True, rates=True)
    facts = machine.fingerprint(survey)
    conditions = read_conditions() | {"virtual_hosts": vars(try_lab())}
    findings = diagnose(facts, conditions)
    if as_json:
        answer = {"facts": facts, "conditions": conditions, "findings": [vars(f) for f in findings]}
        emit(json.dumps(answer, indent=1))
    else:
        emit(render_diagnosis(facts, conditions, findings))
