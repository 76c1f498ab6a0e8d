# config -> Study, scope and paths: nothing else.
import json
import os
import sys
from pathlib import Path
from uuid import uuid4

from snakemake.settings.types import DeploymentMethod
from snakemake.utils import update_config

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))
# the rules call `python3` by name, so that their text, which Snakemake compares, is the same on every machine
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from halfstep import study as studies
from halfstep.fingerprint import fingerprint, run_fingerprint
from halfstep.scope import decide_scope
from halfstep.system.gpu import GpuError


def stop(message):
    print(message, file=sys.stderr)
    sys.exit(2)


if DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method:
    stop("--use-singularity: there is no image yet, so everything runs on the host; leave the option out.")

try:
    # not `configfile:`, which would end a mistake in the file with a traceback
    loaded = studies.read_config(Path("config.yaml"))
    update_config(loaded, config)
    STUDY = studies.validate(loaded)
    # decided once, by the process that people start: jobs on other nodes parse this file again and must agree
    if workflow.is_main_process:
        SCOPE = decide_scope(STUDY, image=False)
        os.environ["HALFSTEP_SITTING"] = uuid4().hex
    else:
        SCOPE = studies.Scope.parse(os.environ["HALFSTEP_SCOPE"])
except (studies.StudyError, GpuError) as error:
    stop(str(error))
os.environ["HALFSTEP_SCOPE"] = SCOPE.name
os.environ["HALFSTEP_STUDY"] = STUDY.model_dump_json()


envvars:
    "HALFSTEP_SCOPE",
    "HALFSTEP_SITTING",


OUT = f"results/{SCOPE.name}"
RUNS = studies.run_keys(STUDY, SCOPE)
RECORDS = [f"{OUT}/runs/{c}/{v}/rep{n}/record.json" for c, v, n in RUNS]
