# What is made: see rules/. What is measured: see config.yaml.
include: "rules/common.smk"
include: "rules/probe.smk"
include: "rules/measure.smk"
include: "rules/report.smk"


# The records too: beside an older report, a job that died would else end in "nothing to be done".
rule all:
    default_target: True
    input:
        f"{OUT}/system/doctor.json",
        RECORDS,
        f"{OUT}/report.md",
