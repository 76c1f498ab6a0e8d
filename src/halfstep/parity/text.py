"""Text for the language model: the next byte of the sources of Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from functools import cache
from pathlib import Path

import torch

from halfstep.errors import Unsupported
from halfstep.parity.learnable import Learnable
from halfstep.workloads import lm
from halfstep.workloads.workload import Batch

FILES = (
    "argparse.py", "ast.py", "bdb.py", "calendar.py", "codecs.py", "configparser.py", "copy.py", "csv.py",
    "dataclasses.py", "difflib.py", "dis.py", "doctest.py", "enum.py", "fractions.py", "ftplib.py", "functools.py",
    "gettext.py", "gzip.py", "heapq.py", "imaplib.py", "inspect.py", "ipaddress.py", "locale.py", "mailbox.py",
    "mimetypes.py", "optparse.py", "os.py", "pdb.py", "pickle.py", "pickletools.py", "platform.py", "plistlib.py",
    "poplib.py", "pprint.py", "profile.py", "pydoc.py", "random.py", "selectors.py", "shlex.py", "shutil.py",
    "smtplib.py", "socket.py", "socketserver.py", "ssl.py", "statistics.py", "subprocess.py", "tarfile.py",
    "tempfile.py", "textwrap.py", "threading.py", "tokenize.py", "traceback.py", "typing.py", "uuid.py", "weakref.py",
)  # fmt: skip
"""in every Python from 3.11 on, and in no package that a distribution takes out of the library"""


@cache
def text() -> bytes:
    """The files one after the other.

    Raises:
        Unsupported: this Python came without one of them as a source.
    """
    library = Path(sysconfig.get_path("stdlib"))
    try:
        return b"".join((library / name).read_bytes() for name in FILES)
    except OSError as error:
        raise Unsupported(
            f"the language model's parity runs learn from the sources of Python's library, and {error.filename} cannot "
            f"be read ({error.strerror}): take a Python that came with them"
        ) from error


@cache
def tokens(device: torch.device) -> torch.Tensor:
    """The text as bytes on a device: [bytes] uint8."""
    return torch.frombuffer(bytearray(text()), dtype=torch.uint8).to(device)


def source() -> str:
    """SHA-256 of the text: it differs between versions of Python."""
    return hashlib.sha256(text()).hexdigest()


def batch(n: int, index: int, generator: torch.Generator, *, context: int, **_: object) -> Batch:
    """Bytes [n, context] int64 from n random places of the text, and each one's successor as its target."""
    device = generator.device
    whole = tokens(device)
    starts = torch.randint(len(whole) - context, (n, 1), generator=generator, device=device)
    piece = whole[starts + torch.arange(context + 1, device=device)].long()
    return piece[:, :-1].contiguous(), piece[:, 1:].contiguous()


LM = Learnable(
    unit=lm.LM.unit,
    sizes=lm.LM.sizes,
    build=lm.build,
    blocks=lm.blocks,
    batch=batch,
    loss=lm.loss,
    samples=lm.samples,
    source=source,
)
