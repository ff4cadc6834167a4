"""Deployments on a shared server that has more flows than one of its answers: a real server."""

from pathlib import Path

import pytest

from flows.server.client import prefect_client
from flows.server.deployments import deployed
from ratchet.servers import prefect_server
from ratchet.workspace import Workspace

MORE_THAN_A_PAGE = 205  # a page has 200


@pytest.mark.slow
def test_deployments_are_listed_beyond_the_first_page(tmp_path: Path) -> None:
    names = [f"flow-{number:03}" for number in range(MORE_THAN_A_PAGE)]
    with prefect_server(Workspace(tmp_path.resolve())) as api, prefect_client(api) as client:
        assert deployed(client) == []
        for name in names:
            client.create_deployment(client.create_flow_from_name(name), "local")
        assert deployed(client) == [f"{name}/local" for name in names]
