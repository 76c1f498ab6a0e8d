# config -> Study, scope and paths: nothing else.
import atexit
import hashlib
import json
import os
import sys
from math import ceil
from pathlib import Path
from tempfile import NamedTemporaryFile
from uuid import uuid4

import yaml
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import update_config

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))

from halfstep.archive.source import find_source
from halfstep.config_file import read_config
from halfstep.fingerprint import fingerprint, run_fingerprint
from halfstep.measure.ancestor import this_process
from halfstep.mistakes import StudyError
from halfstep.parity.plan import parity_keys, resolve_parity
from halfstep.references import check_references
from halfstep.report.last_line import last_line
from halfstep.runs import Scope, at_scale, canonical_json, resolve, run_keys
from halfstep.scope import decide_scope
from halfstep.strangers import strangers
from halfstep.study import validate
from halfstep.system.gpu import GpuError


def stop(message):
    print(message, file=sys.stderr)
    sys.exit(2)


# the rules take the code from src/ of the folder they run in: elsewhere another halfstep, or none, would measure
if not Path.cwd().samefile(ROOT):
    stop(f"Call snakemake in {ROOT} and without --directory: config.yaml and results/ lie beside the Snakefile.")

# by every spelling of the flag, and in every process
IMAGE = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method

try:
    check_references()
    # not `configfile:`, which would end a mistake in the file with a traceback
    loaded = read_config(Path("config.yaml"))
    update_config(loaded, config)
    STUDY = validate(loaded, "config.yaml with --config and --configfile" if config else "config.yaml")
    # decided once, by the process that people start: jobs on other nodes parse this file again and must agree
    if workflow.is_main_process:
        SCOPE = decide_scope(STUDY, image=IMAGE)
        os.environ["HALFSTEP_SITTING"] = uuid4().hex
    else:
        SCOPE = Scope.parse(os.environ["HALFSTEP_SCOPE"])
    STUDY = at_scale(STUDY, SCOPE)
except (StudyError, GpuError) as error:
    stop(str(error))

# the rules call `python3` by name, so that their text, which Snakemake compares, is the same on every machine
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["HALFSTEP_SCOPE"] = SCOPE.name
# this process: the one that a run must not outlive
os.environ["HALFSTEP_SNAKEMAKE"] = this_process()
# a file, since Linux passes no variable above 128 KiB: a study of 800 variants is that long
if workflow.is_main_process:
    try:
        study_file = NamedTemporaryFile("w", suffix=".yaml", prefix="halfstep-study-", encoding="utf-8")
        yaml.safe_dump(STUDY.model_dump(mode="json"), study_file, sort_keys=False)
        study_file.flush()
    except OSError as error:
        stop(f"The study cannot be written to a temporary file for the rules (TMPDIR): {error.strerror}")
    os.environ["HALFSTEP_STUDY"] = study_file.name


envvars:
    "PATH",
    "HALFSTEP_SCOPE",
    "HALFSTEP_SITTING",
    "HALFSTEP_SNAKEMAKE",
    "HALFSTEP_STUDY",


OUT = f"results/{SCOPE.name}"
FOLDER = f"{OUT}/runs/{{comparison}}/{{variant}}/rep{{n}}"
PARITY_FOLDER = f"{OUT}/parity/{{family}}/{{recipe}}/seed{{seed}}"
RUNS = run_keys(STUDY, SCOPE)
PARITY = parity_keys(STUDY, SCOPE)
# timed runs first, which have to meet in one sitting; parity runs only need the same environment, in whichever
RANK = {key: len(RUNS) + len(PARITY) - place for place, key in enumerate([*RUNS, *PARITY])}
RECORDS = [f"{OUT}/runs/{c}/{v}/rep{n}/record.json" for c, v, n in RUNS]
PARITY_RECORDS = [f"{OUT}/parity/{key.folder}/record.json" for key in PARITY]
PARITY_BY_FOLDER = {key.folder: key for key in PARITY}


# of a Slurm job; profiles/slurm may ask for others
GPUS = 0 if SCOPE.device == "cpu" else 1
CPUS, MEMORY_MB = (8, 32000) if SCOPE.scale == "full" else (2, 4000)


def key_of(wildcards):
    return wildcards.comparison, wildcards.variant, int(wildcards.n)


def resolved(wildcards):
    return resolve(STUDY, SCOPE, key_of(wildcards))


def parity_key(wildcards):
    return PARITY_BY_FOLDER[f"{wildcards.family}/{wildcards.recipe}/seed{wildcards.seed}"]


def trained(wildcards):
    return resolve_parity(STUDY, SCOPE, parity_key(wildcards))


def file_hash(path):
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:16]


def beside_code(folder):
    """The files of a package that are no Python: templates, style, script."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir() if path.suffix not in (".py", ""))


def source_state():
    """What an archive's source hangs on: its commit and what is changed in it."""
    try:
        return find_source(ROOT).state()
    except StudyError as error:
        stop(str(error))


def figures_to_show():
    """For `snakemake --report`, which shows inputs of rules too: the figures that there are, with their captions.

    Only then: which figures there will be is known when they are drawn, and one that is gone would be a missing input.
    """
    captions = Path(OUT, "figures/captions.json")
    if not any(word.partition("=")[0] == "--report" for word in sys.argv) or not captions.exists():
        return []
    found = []
    for comparison, figures in json.loads(captions.read_text(encoding="utf-8")).items():
        for figure in figures.values():
            stem = f"{OUT}/figures/{figure['file']}"
            if Path(f"{stem}.svg").exists():
                labels = {"figure": figure["title"]}
                found.append(report(f"{stem}.svg", caption=f"{stem}.rst", category=comparison, labels=labels))
    return found


def measured_now(path):
    """Whether a run's file is of this call: it lies beside a record that was made in it."""
    record = Path(path).with_name("record.json")
    return record.exists() and os.environ["HALFSTEP_SITTING"] in record.read_text(encoding="utf-8")


def conclude():
    """However a call ends, with nothing to do or with an error: results/latest points here, and the report is named."""
    ran = workflow.executor_plugin is not None and not workflow.dryrun
    if ran and Path(OUT).is_dir():
        link = Path("results/latest")
        try:
            if link.is_symlink():
                link.unlink(missing_ok=True)
            link.symlink_to(SCOPE.name)
        except OSError as error:  # something else of that name, a folder that may not be written to, another call
            print(f"results/latest does not point to {OUT}: {error.strerror}", file=sys.stderr)
        asked = [resolve(STUDY, SCOPE, key) for key in RUNS] + [resolve_parity(STUDY, SCOPE, key) for key in PARITY]
        if found := strangers(zip(map(Path, RECORDS + PARITY_RECORDS), asked)):
            print(
                f"Of another configuration or version of the code: {found} of the records in {OUT}/. Where Snakemake "
                "does not see that, .snakemake/ did not come with them: `snakemake --cores 1 --forcerun collect_runs` "
                "marks their runs as stale, `make remeasure STATUS=stale` then measures them.",
                file=sys.stderr,
            )
        if Path(OUT, "report.html").exists():
            print(last_line(Path(OUT)), file=sys.stderr)


if workflow.is_main_process:
    atexit.register(conclude)
