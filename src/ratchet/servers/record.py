""".ratchet/servers.json: the services that `up` has started and `down` has not yet stopped."""

from dataclasses import dataclass, field
from pathlib import Path

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.processes import Service
from ratchet.workspace import Workspace

__all__ = ["Record"]


@dataclass
class Record:
    """The services by name, and the digest of the deployments' sources. Written after every change."""

    path: Path
    services: dict[str, Service] = field(default_factory=dict)
    deployed: str = ""

    @classmethod
    def read(cls, workspace: Workspace) -> "Record":
        """Read the file; a missing one is an empty record.

        Raises:
            PlatformError: it is damaged, so the started processes are unknown.
        """
        path = cls.place(workspace)
        if not path.exists():
            return cls(path)
        try:
            content = files.read_json(path)
            services = [Service.from_json(service) for service in content["services"]]
            return cls(path, {service.name: service for service in services}, str(content["deployed"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlatformError(
                f"{path}: damaged ({error}). Fix: end the servers by hand (`ps -ef | grep "
                f"ratchet/servers/supervisor.py` shows their pids), then delete {path}"
            ) from error

    @staticmethod
    def place(workspace: Workspace) -> Path:
        """Return the file's path."""
        return workspace.state / "servers.json"

    @property
    def api(self) -> str | None:
        """Return the Prefect API that the services use; None if none of them uses one."""
        prefect, worker = self.services.get("prefect"), self.services.get("worker")
        if prefect:
            return f"{prefect.address}/api"
        return worker.address if worker else None

    def write(self) -> None:
        """Write the file; without services, remove it."""
        if self.services:
            services = [service.to_json() for service in self.services.values()]
            files.write_json(self.path, {"services": services, "deployed": self.deployed})
        else:
            self.path.unlink(missing_ok=True)

    def add(self, service: Service) -> None:
        self.services[service.name] = service
        self.write()

    def end(self, name: str, *, grace: float) -> int:
        """End the service of that name, if there is one, and forget it.

        Returns: the number of processes that had to be killed.
        """
        service = self.services.get(name)
        if service is None:
            return 0
        killed = service.end(grace=grace)
        del self.services[name]
        self.write()
        return killed
