"""Which of a shell's variables the measuring process gets."""

from halfstep.system.switches import switches, without_switches


def test_what_would_change_a_measurement_is_cleared_and_the_rest_is_kept() -> None:
    cleared = {
        "TORCH_COMPILE_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
        "OMP_NUM_THREADS": "1",
    }
    kept = {"PATH": "/bin", "CUDA_HOME": "/cuda", "LD_LIBRARY_PATH": "/lib", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    assert switches(cleared | kept) == sorted(cleared)
    assert without_switches(cleared | kept) == kept
