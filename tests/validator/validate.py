"""Run in the validator's own environment: `validate.py CRATE CACHE` prints what a crate lacks, one thing a line.

By Workflow Run Crate 0.5 and all that it extends, what it requires and what it recommends. Without a network: the
validator runs offline on the cache, a file to be named, which holds the JSON-LD context that rocrate brings along.
"""

import importlib.resources
import io
import sys

from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import services
from rocrate_validator.models import Severity, ValidationSettings
from urllib3 import HTTPResponse

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


class Installed(HTTPAdapter):
    """Answers every request with the context that is installed."""

    def send(self, request, **options):
        body = importlib.resources.files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()
        headers = {"Content-Type": "application/ld+json"}
        return self.build_response(request, HTTPResponse(io.BytesIO(body), headers, 200, preload_content=False))


crate, cache = sys.argv[1:]
session = CachedSession(cache, backend="sqlite", expire_after=-1)
session.mount("https://", Installed())
session.get(CONTEXT).raise_for_status()
result = services.validate(
    ValidationSettings(
        rocrate_uri=crate,
        profile_identifier="workflow-run-crate",
        requirement_severity=Severity.RECOMMENDED,
        offline=True,
        cache_path=cache,
    )
)
for issue in result.get_issues(Severity.RECOMMENDED):
    print(f"{issue.severity.name} {issue.check.identifier} {issue.violatingEntity or ''}: {issue.message}")
print(f"{len(result.executed_checks)} checks")
