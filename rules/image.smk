# The image that probe and measurements run in, under --use-singularity only. docs/image.md says what is in it.
from halfstep.image.commands import ImageError
from halfstep.image.inside import environment, passed_in
from halfstep.image.make import FILES, mismatch

TARGET = "cpu" if SCOPE.device == "cpu" else "cuda"
IMAGE_FOLDER = f"results/image/{TARGET}"
SIF = f"{IMAGE_FOLDER}/halfstep.sif"

# what records are signed with: on the host by none, whatever a shell says
os.environ.pop("HALFSTEP_IMAGE", None)

if IMAGE:
    try:
        # in every process that parses this file, since each starts Apptainer by itself
        os.environ.update(environment(Path(OUT), gpu=SCOPE.device != "cpu"))
    except (ImageError, OSError) as error:
        stop(str(error))
    # where one is missing they are made anew; a job's process would ask a shared file system that may lag behind
    there = all(Path(IMAGE_FOLDER, name).exists() for name in FILES)
    if workflow.is_main_process and there and (wrong := mismatch(Path(IMAGE_FOLDER))):
        stop(wrong)

    # what the build sees
    CONTEXT = ["requirements-train.lock", *sorted(str(path) for path in Path("docker").iterdir() if path.is_file())]

    # A checkpoint, and its digest an input: else in one call a comment in the Dockerfile would measure everything again.
    checkpoint build_image:
        input:
            [] if STUDY.container.image else CONTEXT,
        output:
            sif=SIF,
            packages=f"{IMAGE_FOLDER}/packages.json",
            digest=f"{IMAGE_FOLDER}/digest",
        log:
            f"{IMAGE_FOLDER}/build.log",
        localrule: True
        params:
            # what makes it run again; the command takes it from the study
            container=canonical_json(
                STUDY.container.model_dump(exclude={"builder": True, "build_args": {"BUILD_JOBS"}})
            ),
            target=TARGET,
            folder=lambda w: IMAGE_FOLDER,
        shell:
            'PYTHONPATH=src python3 -m halfstep image {params.target} {params.folder} --study "$HALFSTEP_STUDY"'


def image(wildcards):
    """What a rule needs of the image; without one, nothing. Asked through the checkpoint, and the SIF `ancient`, so that
    an unchanged digest measures nothing again, and a changed one everything."""
    if not IMAGE:
        return []
    built = checkpoints.build_image.get().output
    # of the image that the job will run in, and no part of its command, which would be another with every digest
    os.environ.update(passed_in({"HALFSTEP_IMAGE": Path(built.digest).read_text().strip()}))
    return [built.digest, ancient(built.sif)]
