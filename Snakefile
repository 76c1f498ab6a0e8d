# What is made: see rules/. What is measured: see config.yaml.
include: "rules/common.smk"
include: "rules/image.smk"
include: "rules/probe.smk"
include: "rules/measure.smk"
include: "rules/parity.smk"
include: "rules/report.smk"
include: "rules/archive.smk"


# Not the report alone: beside an older one, what is gone or whose job died would else be "nothing to be done".
# The image too: without its file nothing would ask whether it is still the one that was measured in.
rule all:
    default_target: True
    input:
        f"{OUT}/system/doctor.json",
        RECORDS,
        PARITY_RECORDS,
        rules.collect_runs.output,
        rules.plot_figures.output,
        rules.write_report.output,
        [SIF] * IMAGE,
        figures_to_show(),
