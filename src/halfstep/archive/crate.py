"""ro-crate-metadata.json: what an archive holds and how it came about, for machines.

The profile is Workflow Run Crate, the middle one of the three of Workflow Run RO-Crate 0.5. Process Run Crate would not
say that a workflow ran; Provenance Run Crate would repeat of every job what its record.json says better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.model.entity import Entity
from rocrate.rocrate import ROCrate

from halfstep.archive.citation import Citation
from halfstep.archive.contents import Recorded
from halfstep.archive.layout import ABOUT, BESIDE_SOURCE, CONFIG, DIFF, IMAGE, README, RESULTS, SOURCE, SUMS
from halfstep.report.results import Results

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
TERMS = "https://w3id.org/ro/terms/workflow-run#"
COMPLETED = "http://schema.org/CompletedActionStatus"  # a run that fails is a result
NEVER = datetime(1980, 1, 1, tzinfo=UTC)  # of runs whose records do not say when they ended
TYPES = {
    ".cff": "application/yaml", ".csv": "text/csv", ".html": "text/html", ".json": "application/json", ".md":
    "text/markdown", ".pdf": "application/pdf", ".png": "image/png", ".rst": "text/x-rst", ".svg": "image/svg+xml",
    ".tex": "application/x-tex", ".txt": "text/plain", ".yaml": "application/yaml",
}  # fmt: skip
MEANINGS = {
    README: "for the reviewer: what is here, how to check it, how to measure it again",
    ABOUT: "which scope and source, and by which libraries tables and figures were made",
    SUMS: "SHA-256 of every other file",
    DIFF: "what was changed in the source since its commit",
    f"{SOURCE}/docker/Dockerfile": "the image of the dependencies",
    f"{SOURCE}/requirements.lock": "versions and hashes of what reports and verifies",
    f"{SOURCE}/requirements-train.lock": "versions and hashes of what measures",
    **dict.fromkeys(BESIDE_SOURCE, "of the source"),
}


def describe(folder: Path, results: Results, citation: Citation, runs: Sequence[Recorded]) -> str:
    """The metadata of the archive whose files lie in `folder`; README, archive.json and SHA256SUMS may come later."""
    crate = ROCrate(version="1.1")
    # in the file itself, so that it is read without fetching a second context
    crate.metadata.extra_terms = {name: f"{TERMS}{name}" for name in ("ContainerImage", "containerImage", "sha256")}
    scope = f"{RESULTS}/{results.scope.name}"
    _root(crate, results, citation, _ended(runs))
    config = _file(crate, CONFIG, "the study as it was written")
    study = _file(crate, f"{scope}/study.json", "the study as it was read: all defaults, and the scope")
    raw = _folder(crate, f"{scope}/runs/", "raw results of the runs")
    all_raw = [raw]
    if (folder / scope / "parity").exists():
        all_raw.append(_folder(crate, f"{scope}/parity/", "raw results of the parity runs"))
    workflow = crate.add_workflow(
        dest_path=f"{SOURCE}/Snakefile", main=True, lang="snakemake", lang_version=version("snakemake")
    )
    workflow["name"] = "halfstep"
    workflow["version"] = citation.version
    workflow["encodingFormat"] = "text/plain"
    workflow["conformsTo"] = {"@id": WORKFLOW}
    _parameter(crate, workflow, "input", "study", "File", config)
    _parameter(crate, workflow, "output", "runs", "Dataset", raw)
    doctor = {f"{scope}/system/doctor.json": "what the machine can do, each thing proved by doing it"}
    for name, meaning in (MEANINGS | doctor).items():
        if name in (README, ABOUT, SUMS) or (folder / name).exists():
            _file(crate, name, meaning)
    crate.get(README)["about"] = crate.root_dataset
    containers = _containers(crate, folder, runs)
    sittings: dict[str, list[Recorded]] = {}
    for run in runs:
        sittings.setdefault(str(run.record.get("sitting") or "unknown"), []).append(run)
    made = [_file(crate, name, said) for name, said in _made(folder, scope).items()]
    for sitting, found in sorted(sittings.items(), key=lambda item: (_ended(item[1]), item[0])):
        results_of = [_folder(crate, f"{scope}/{run.folder}/", _outcome(run)) for run in found]
        action = crate.add_action(workflow, f"#sitting-{sitting}", [config, study], results_of, _times(found))
        action["name"] = f"Sitting {sitting}"
        action["description"] = "one call of Snakemake on one machine"
        used = {str(run.record.get("image")) for run in found}
        for digest in sorted(used & containers.keys()):
            action.append_to("containerImage", containers[digest], compact=True)
        crate.root_dataset.append_to("mentions", action)
    report = crate.add_action(workflow, "#report", [study, *all_raw], made, {"endTime": _ended(runs).isoformat()})
    report["name"] = "Tables, figures and report"
    report["description"] = "made from the raw results; the time is that of the last of them"
    crate.root_dataset.append_to("mentions", report)
    return json.dumps(crate.metadata.generate(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _root(crate: ROCrate, results: Results, citation: Citation, ended: datetime) -> None:
    root = crate.root_dataset
    root["name"] = results.study.title
    root["description"] = (
        f"What halfstep measured on {results.machine}: raw results, tables, figures and report, and the source that "
        "made them."
    )
    root["datePublished"] = ended.date().isoformat()
    if citation.license:
        page = f"https://spdx.org/licenses/{citation.license}"
        root["license"] = _add(crate, page, "CreativeWork", name=citation.license, description="by its SPDX identifier")
    else:
        root["license"] = "see LICENSE"
    for place, (kind, name) in enumerate(citation.authors, 1):
        root.append_to("author", _add(crate, f"#author-{place}", kind, name=name), compact=True)
    root["conformsTo"] = [
        _add(crate, profile, "CreativeWork", name=name, version=profile.rpartition("/")[2])
        for profile, name in PROFILES.items()
    ]


def _parameter(crate: ROCrate, workflow: Entity, direction: str, name: str, kind: str, value: Entity) -> None:
    """A slot of the workflow, and what filled it."""
    parameter = crate.add_formal_parameter(name, kind, f"#{name}", value["description"], valueRequired=True)
    parameter["workExample"] = value
    value["exampleOfWork"] = parameter
    workflow[direction] = parameter


def _containers(crate: ROCrate, folder: Path, runs: Sequence[Recorded]) -> dict[str, Entity]:
    """By its digest each image that runs were made in, with its bill of materials where it is here."""
    found = {}
    for digest in sorted({str(run.record.get("image") or "host") for run in runs} - {"host"}):
        found[digest] = _add(
            crate,
            f"#image-{digest.removeprefix('sha256:')}",
            "ContainerImage",
            name="halfstep",
            additionalType={"@id": f"{TERMS}DockerImage"},
            sha256=digest.removeprefix("sha256:"),
        )
    for path in sorted((folder / IMAGE).glob("*/digest")):
        packages = _file(crate, f"{IMAGE}/{path.parent.name}/packages.json", "what is in the image")
        packages["about"] = found[path.read_text(encoding="utf-8").strip()]
    return found


def _made(folder: Path, scope: str) -> dict[str, str]:
    """Tables, figures and reports, by name; a figure says what there is to see in it."""
    captions = json.loads((folder / scope / "figures" / "captions.json").read_text(encoding="utf-8"))
    said = {
        figure["file"]: f"{figure['title']}. {figure['caption']}"
        for figures in captions.values()
        for figure in figures.values()
    }
    paths = [path for pattern in ("report.*", "tables/*", "figures/*") for path in (folder / scope).glob(pattern)]
    return {path.relative_to(folder).as_posix(): said.get(path.stem, "") for path in sorted(paths)}


def _outcome(run: Recorded) -> str:
    return ": ".join(str(run.record[key]) for key in ("status", "reason") if run.record.get(key))


def _times(runs: Sequence[Recorded]) -> dict[str, Any]:
    starts = [run.started for run in runs if run.started]
    start = {"startTime": min(starts).isoformat()} if starts else {}
    return {**start, "endTime": _ended(runs).isoformat(), "actionStatus": COMPLETED}


def _ended(runs: Sequence[Recorded]) -> datetime:
    return max((run.ended for run in runs if run.ended), default=NEVER)


def _file(crate: ROCrate, name: str, description: str) -> Entity:
    properties = {"name": name, "encodingFormat": TYPES.get(Path(name).suffix, "text/plain")}
    return crate.add_file(dest_path=name, properties=properties | ({"description": description} if description else {}))


def _folder(crate: ROCrate, name: str, description: str) -> Entity:
    return crate.add_dataset(dest_path=name, properties={"name": name, "description": description})


def _add(crate: ROCrate, identifier: str, kind: str, **properties: Any) -> Entity:
    return crate.add(ContextEntity(crate, identifier, properties={"@type": kind, **properties}))
